"""Adapters as sessions, for the worker. The gateway uses `catalogue`, which imports no numpy."""

from __future__ import annotations

from din.adapters.catalogue import ADAPTERS, check_adapter, parse_options
from din.adapters.centerface import CenterFaceAdapter
from din.adapters.classify import ClassifyAdapter
from din.adapters.image import ImageAdapter
from din.adapters.options import CenterFaceOptions, ClassifyOptions, ImageOptions
from din.domain.model import AdapterSpec
from din.domain.tensor import TensorSpec
from din.errors import UsageError

Adapter = ImageAdapter | CenterFaceAdapter | ClassifyAdapter


def load_adapter(
    spec: AdapterSpec, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> Adapter:
    """A session that runs the adapter between tensors of these specs (those of `catalogue`).

    Raises UsageError for an unknown adapter or a bad option.
    """
    entry = ADAPTERS.get(spec.name)
    check_adapter(spec, entry.kind if entry is not None else "before")
    if spec.name == "image":
        return ImageAdapter(parse_options(spec, ImageOptions), inputs, outputs)
    if spec.name == "centerface":
        return CenterFaceAdapter(parse_options(spec, CenterFaceOptions), inputs, outputs)
    if spec.name == "classify":
        return ClassifyAdapter(parse_options(spec, ClassifyOptions), inputs, outputs)
    raise UsageError(f"adapter {spec.name!r} is in the catalogue but has no code")
