"""Where the bytes of large tensors lie: in the model's file or in files beside it.

A tensor whose bytes are elsewhere carries a reference instead, a number into the table of places.
Small ones, and those that engines look for in the model only, are read into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from onnx import GraphProto, TensorProto

from din.domain.model import MODEL_FILE
from din.errors import BadModel, TooLarge
from din.slicing.elements import exact_bytes
from din.slicing.nearest import listed
from din.slicing.skeleton import REFERENCE_KEY, SKELETON_BYTES_MAX, WEIGHT_BYTES_KEPT, Span
from din.slicing.source import Contents, held_by

_DIGITS_MAX: Final = 18


class Place(NamedTuple):
    """Where the bytes of one tensor lie."""

    file: str
    offset: int
    nbytes: int


def settle_weights(
    found: Contents, spans: Sequence[Span], files: Mapping[str, memoryview]
) -> tuple[Place, ...]:
    """The places that a model's references count into, in place and in one order wherever the
    weights came from. `spans`: what its skeleton left in the model's file.

    Raises BadModel for weights that do not fit their tensor or their file, TooLarge.
    """
    given = _Given(spans, files)
    # The library makes these objects as they are asked for, and keeps to those that are alive.
    hosts = set(map(id, found.model.graph.initializer))
    hosts.update(id(held.value) for held in found.nodes if held.value is not None)
    places: list[Place] = []
    read = 0
    for tensor in found.tensors:
        place = given.place_of(tensor)
        if place is None:
            continue
        if id(tensor) in hosts and place.nbytes > WEIGHT_BYTES_KEPT and exact_bytes(tensor):
            if not _refers(tensor, str(len(places))):
                refer(tensor, {REFERENCE_KEY: str(len(places))})
            places.append(place)
            continue
        read += place.nbytes
        if read > SKELETON_BYTES_MAX:
            raise TooLarge(
                f"over {SKELETON_BYTES_MAX} bytes of weights are used in subgraphs and functions",
                hint="make them initialisers of the top graph: subgraphs may use those",
            )
        _take_in(tensor, place, files)
    given.check_all_used()
    return tuple(places)


def fill_in(graph: GraphProto, places: Sequence[Place], files: Mapping[str, memoryview]) -> None:
    """Put the bytes of all weights back into a graph, in place, for engines that get no packs."""
    for number, tensor in list(references_in(graph)):
        _take_in(tensor, places[number], files)


def references_in(graph: GraphProto) -> Iterator[tuple[int, TensorProto]]:
    """The tensors of a graph whose bytes are elsewhere, with their number."""
    for tensor in _hosts(graph):
        if tensor.external_data:
            yield int(tensor.external_data[0].value), tensor


def _refers(tensor: TensorProto, number: str) -> bool:
    """Whether a tensor refers so already, as most do: its skeleton counted alike."""
    entries = tensor.external_data
    return len(entries) == 1 and entries[0].key == REFERENCE_KEY and entries[0].value == number


def refer(tensor: TensorProto, entries: Mapping[str, str]) -> None:
    """Let a tensor refer to its bytes by these entries and no others."""
    del tensor.external_data[:]
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = TensorProto.EXTERNAL


def _take_in(tensor: TensorProto, place: Place, files: Mapping[str, memoryview]) -> None:
    tensor.raw_data = bytes(files[place.file][place.offset : place.offset + place.nbytes])
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _hosts(graph: GraphProto) -> Iterator[TensorProto]:
    """Tensors that engines find outside of the model: initialisers, and values of Constants."""
    yield from graph.initializer
    for node in graph.node:
        if node.op_type == "Constant" and (value := held_by(node).value) is not None:
            yield value


class _Given:
    """The places that the file itself names, each checked."""

    def __init__(self, spans: Sequence[Span], files: Mapping[str, memoryview]) -> None:
        self._spans = dict(enumerate(spans))
        self._files = files

    def place_of(self, tensor: TensorProto) -> Place | None:
        """Where a tensor's bytes are; None = in the tensor. Raises BadModel."""
        if not tensor.external_data and tensor.data_location != TensorProto.EXTERNAL:
            return None
        entries = {each.key: each.value for each in tensor.external_data}
        if REFERENCE_KEY in entries:
            place = self._own(entries[REFERENCE_KEY])
        else:
            place = self._beside(tensor, entries)
        wanted = exact_bytes(tensor)
        if wanted is not None and wanted != place.nbytes:
            raise BadModel(
                f"the weights of {tensor.name!r} have {place.nbytes} bytes, "
                f"its type and shape ask for {wanted}",
                hint="the file is damaged, or its exporter failed: export the model again",
            )
        return place

    def check_all_used(self) -> None:
        """Raises BadModel when the model hides what its skeleton showed."""
        if self._spans:
            raise _forged()

    def _own(self, number: str) -> Place:
        span = self._spans.pop(int(number), None) if _is_number(number) else None
        if span is None:
            raise _forged()
        return Place(MODEL_FILE, *span)

    def _beside(self, tensor: TensorProto, entries: Mapping[str, str]) -> Place:
        location = entries.get("location", "")
        name = f"the weights of {tensor.name!r}"
        if not location or location not in self._files:
            raise BadModel(
                f"{name} lie in the file {location!r}, which did not come with the model",
                hint="`din model register` sends it from the model's folder; "
                + f"the files that came are {listed(sorted(filter(None, self._files)))}",
            )
        if _holds_data(tensor):
            raise BadModel(
                f"{name} lie in the file {location!r} and in the model as well",
                hint="export the model again",
            )
        offset, length = entries.get("offset", "0"), entries.get("length")
        wanted = exact_bytes(tensor)
        if wanted is None:
            raise BadModel(
                f"{name} lie in the file {location!r} and are of element type {tensor.data_type}, "
                "whose size is not known",
                hint="strings and new types belong into the model's own file",
            )
        if not _is_number(offset) or not _is_number("0" if length is None else length):
            raise BadModel(
                f"{name} are said to lie at {offset!r} of {location!r}, with length {length!r}",
                hint="both are whole numbers; export the model again",
            )
        place = Place(location, int(offset), wanted if length is None else int(length))
        size = len(self._files[location])
        if place.offset + place.nbytes > size:
            raise BadModel(
                f"{name} lie in the file {location!r} up to byte {place.offset + place.nbytes}, "
                f"and it has {size}",
                hint="the file is cut off or another one: copy it again beside the model",
            )
        return place


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _holds_data(tensor: TensorProto) -> bool:
    typed = (
        tensor.float_data,
        tensor.int32_data,
        tensor.string_data,
        tensor.int64_data,
        tensor.double_data,
        tensor.uint64_data,
    )
    return tensor.HasField("raw_data") or any(typed)


def _forged() -> BadModel:
    return BadModel(
        f"tensors of the model carry the entry {REFERENCE_KEY!r}, which is DIN's own",
        hint="export the model again",
    )
