"""What loaded slices were measured to take, by slice, options and class of device with its engine.

A slice's memory is an estimate until a node has loaded it; what that node says corrects the next
placements of the same slice. Nothing is kept on disk: nodes say it again as they come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from din.domain.estimates import needed_mib
from din.domain.model import ModelManifest, Slice
from din.domain.node import NodeId, NodeProfile

MEASURED_MAX: Final = 4096
"""Slices; the one that was measured longest ago goes first."""
CLASSES_MAX: Final = 64

_Name = tuple[str, str, str]


class MemoryBook:
    """Measured memory of one gateway."""

    def __init__(self, profiles: Callable[[], Iterable[NodeProfile]]) -> None:
        """`profiles`: of the nodes that a slice may be placed on."""
        self._profiles = profiles
        self._measured: OrderedDict[_Name, dict[str, int]] = OrderedDict()

    def learn(self, part: Slice, manifest: ModelManifest, node_id: NodeId, mib: int) -> int:
        """One worker of a slice takes so much on a node; what of that is believed."""
        profile = next((each for each in self._profiles() if each.node_id == node_id), None)
        if profile is None:
            return max(mib, 1)
        mib = min(max(mib, 1), profile.memory_mib)
        classes = self._measured.pop(name := _name(part, manifest), {})
        device = _class_of(profile, part.backend)
        if len(classes) >= CLASSES_MAX and device not in classes:
            del classes[next(iter(classes))]
        classes[device] = max(mib, classes.get(device, 0))
        self._measured[name] = classes
        while len(self._measured) > MEASURED_MAX:
            self._measured.popitem(last=False)
        return mib

    def needed_mib(self, part: Slice, manifest: ModelManifest) -> int:
        """What one worker is planned to need: by the class that takes most. Where a class of device
        is here that has not loaded it yet, the estimate counts for that."""
        classes = self._measured.get(_name(part, manifest))
        if not classes:
            return part.memory_mib
        here = {_class_of(profile, part.backend) for profile in self._profiles()}
        needed = [needed_mib(part, classes[each]) for each in here & classes.keys()]
        if here - classes.keys() or not needed:
            needed.append(part.memory_mib)
        return max(needed)


def _name(part: Slice, manifest: ModelManifest) -> _Name:
    options = sorted(manifest.backend_options.items())
    return part.slice_id, part.backend, " ".join(f"{name}={text}" for name, text in options)


def _class_of(profile: NodeProfile, backend: str) -> str:
    """Devices of one class, with one version of an engine, are expected to take the same."""
    return f"{profile.device_type}/{backend} {profile.versions.get(backend, '')}"
