"""Which adapters there are, what they take and what they give. Pure: no numpy, no pictures.

The gateway asks here when a model is registered; the worker loads the same options again.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from din.adapters.options import (
    CenterFaceHeads,
    CenterFaceOptions,
    ClassifyOptions,
    ImageOptions,
)
from din.domain.model import CONTEXT_TENSOR, AdapterSpec
from din.domain.tensor import BYTES, Dim, TensorSpec
from din.errors import UsageError

IMAGE_TENSOR: Final = "image"
CONTEXT_SPEC: Final = TensorSpec(CONTEXT_TENSOR, "UINT8", (None,))
PIXEL_DTYPES: Final = ("FP32", "FP16", "UINT8")
CONTEXT_BYTES_MAX: Final = 4096
NAME_CHARACTERS_COMPARED: Final = 200

Specs = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]
"""Inputs and outputs of an adapter's slice."""
_Options = TypeVar("_Options", bound=Struct)


class AdapterEntry(Struct, frozen=True):
    """One adapter: where in a request it stands, its options, what a worker with it needs."""

    kind: Literal["before", "after"]
    options: type[Struct]
    memory_mib: int


ADAPTERS: Final[dict[str, AdapterEntry]] = {
    "image": AdapterEntry("before", ImageOptions, 160),
    "centerface": AdapterEntry("after", CenterFaceOptions, 70),
    "classify": AdapterEntry("after", ClassifyOptions, 64),
}


def check_adapter(spec: AdapterSpec, kind: Literal["before", "after"]) -> None:
    """Raises UsageError for an unknown adapter, a wrong place or a bad option, with a hint."""
    entry = ADAPTERS.get(spec.name)
    if entry is None:
        raise UsageError(
            f"no adapter is called {spec.name!r}", hint=_suggestion(spec.name, ADAPTERS)
        )
    if entry.kind != kind:
        fitting = ", ".join(name for name, each in ADAPTERS.items() if each.kind == kind)
        raise UsageError(
            f"adapter {spec.name!r} belongs {entry.kind} the model, not {kind} it",
            hint=f"adapters {kind} a model: {fitting}",
        )
    parse_options(spec, entry.options)


def memory_mib(spec: AdapterSpec) -> int:
    """Expected resident memory of one worker with this adapter."""
    entry = ADAPTERS.get(spec.name)
    return entry.memory_mib if entry is not None else 0


def parse_options(spec: AdapterSpec, kind: type[_Options]) -> _Options:
    """The options as a struct. Raises UsageError naming adapter, option and what is wrong."""
    known = kind.__struct_fields__
    for name in spec.options:
        if name not in known:
            raise UsageError(
                f"adapter {spec.name!r} has no option {name!r}", hint=_suggestion(name, known)
            )
    try:
        return msgspec.convert(spec.options, kind)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"adapter {spec.name!r}: {str(error).replace('$.', 'option ').replace('`', '')}",
            hint=f"options of {spec.name} are {', '.join(known)}",
        ) from error


def before_specs(spec: AdapterSpec, model_inputs: tuple[TensorSpec, ...]) -> Specs:
    """Inputs and outputs of a `before` slice. Raises UsageError when the model does not suit."""
    check_adapter(spec, "before")
    options = parse_options(spec, ImageOptions)
    if len(model_inputs) != 1:
        names = ", ".join(each.name for each in model_inputs)
        raise UsageError(
            f"adapter 'image' fills one input, but the model has {len(model_inputs)}: {names}",
            hint="use /v2, which takes the model's own tensors, or export the model with one input",
        )
    target = model_inputs[0]
    if target.dtype not in PIXEL_DTYPES:
        raise UsageError(
            f"adapter 'image' cannot fill input {target.name!r} of {target.dtype}",
            hint=f"it writes {', '.join(PIXEL_DTYPES)}",
        )
    filled = TensorSpec(target.name, target.dtype, image_shape(options, target))
    return (TensorSpec(IMAGE_TENSOR, BYTES, (1,)),), (filled, CONTEXT_SPEC)


def image_shape(options: ImageOptions, target: TensorSpec) -> tuple[Dim, ...]:
    """Shape of the tensor that `image` makes for this input. Raises UsageError naming both."""
    declared = target.shape if target.shape is not None else (None, None, None, None)
    if len(declared) != 4:
        raise UsageError(
            f"adapter 'image' makes tensors of 4 dims, input {target.name!r} has {len(declared)}",
            hint="layout is NCHW or NHWC",
        )
    rows, columns, channels = (2, 3, 1) if options.layout == "NCHW" else (1, 2, 3)
    height, width = declared[rows], declared[columns]
    has_size = isinstance(height, int) and isinstance(width, int)
    if options.size is not None:
        wanted_width, wanted_height = options.size
        _check_dim(target, "height", height, wanted_height)
        _check_dim(target, "width", width, wanted_width)
        width, height = wanted_width, wanted_height
    elif options.max_side is None and not has_size:
        raise UsageError(
            f"adapter 'image' needs size or max_side: input {target.name!r} does not say its size",
            hint="for example max_side: 640",
        )
    _check_dim(target, "channels", declared[channels], 3)
    _check_dim(target, "batch", declared[0], 1)
    shape: list[Dim] = [1, 3, 3, 3]
    shape[rows], shape[columns] = height, width
    return tuple(shape)


def after_specs(spec: AdapterSpec, model_outputs: tuple[TensorSpec, ...]) -> Specs:
    """Inputs and outputs of an `after` slice. Raises UsageError when the model does not suit."""
    check_adapter(spec, "after")
    by_name = {each.name: each for each in model_outputs}
    if spec.name == "classify":
        wanted = classify_output(parse_options(spec, ClassifyOptions), tuple(by_name))
        return (_of(by_name, spec.name, wanted),), (
            TensorSpec("scores", "FP32", ("K",)),
            TensorSpec("labels", BYTES, ("K",)),
            TensorSpec("classes", "INT64", ("K",)),
        )
    heads = centerface_heads(parse_options(spec, CenterFaceOptions), tuple(by_name))
    names = (heads.heat, heads.scale, heads.offset, heads.landmarks)
    return (*(_of(by_name, spec.name, name) for name in names), CONTEXT_SPEC), (
        TensorSpec("boxes", "FP32", ("N", 4)),
        TensorSpec("scores", "FP32", ("N",)),
        TensorSpec("labels", BYTES, ("N",)),
        TensorSpec("landmarks", "FP32", ("N", 10)),
    )


def centerface_heads(options: CenterFaceOptions, names: tuple[str, ...]) -> CenterFaceHeads:
    """Which output is which head. Raises UsageError when the model has too few."""
    if options.outputs is not None:
        return options.outputs
    if len(names) < 4:
        raise UsageError(
            f"adapter 'centerface' needs four outputs, the model has {len(names)}",
            hint="heat map, scale, offset and landmarks, in this order or named by `outputs`",
        )
    return CenterFaceHeads(heat=names[0], scale=names[1], offset=names[2], landmarks=names[3])


def classify_output(options: ClassifyOptions, names: tuple[str, ...]) -> str:
    """The output that holds the class scores. Raises UsageError when that is not clear."""
    if options.output is not None:
        return options.output
    if len(names) != 1:
        raise UsageError(
            f"adapter 'classify' needs to know which of {len(names)} outputs holds the scores",
            hint=f"set its option output to one of {', '.join(names)}",
        )
    return names[0]


def _of(by_name: Mapping[str, TensorSpec], adapter: str, name: str) -> TensorSpec:
    found = by_name.get(name)
    if found is None:
        raise UsageError(
            f"adapter {adapter!r} reads output {name!r}, which the model does not have",
            hint=f"the model's outputs are {', '.join(by_name)}",
        )
    if not found.dtype.startswith("FP"):
        raise UsageError(f"adapter {adapter!r} reads output {name!r}, which is {found.dtype}")
    return found


def _check_dim(target: TensorSpec, what: str, declared: Dim, wanted: int) -> None:
    if isinstance(declared, int) and declared != wanted:
        raise UsageError(
            f"adapter 'image' makes {what} {wanted}, but input {target.name!r} has {declared}",
            hint="set size and layout as the model declares them, or override `inputs`",
        )


def _suggestion(name: str, known: tuple[str, ...] | Mapping[str, object]) -> str:
    near = get_close_matches(name[:NAME_CHARACTERS_COMPARED], known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
