"""Words and sizes of what flows along the values of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Final

from onnx import TensorProto, TensorShapeProto, TypeProto

from din.domain.tensor import BYTES, DTYPE_BYTES, Dim, TensorSpec, is_symbol
from din.errors import BadModel

WORDS: Final[dict[int, str]] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.FLOAT8E4M3FN: "FP8",
    TensorProto.FLOAT8E4M3FNUZ: "FP8",
    TensorProto.FLOAT8E5M2: "FP8",
    TensorProto.FLOAT8E5M2FNUZ: "FP8",
    TensorProto.STRING: BYTES,
}
"""Element types of ONNX that DIN carries between slices; the rest stays inside one slice."""

BITS_OF_OTHERS: Final[dict[int, int]] = {
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
    TensorProto.UINT4: 4,
    TensorProto.INT4: 4,
    23: 4,  # FLOAT4E2M1
    24: 8,  # FLOAT8E8M0
    25: 2,  # UINT2
    26: 2,  # INT2
}
"""By number where the onnx package may be older than the type."""
STRING_BYTES_ASSUMED: Final = 16
"""Size of one string in estimates."""


def kind_of(kind: TypeProto | None) -> str:
    """`tensor`, or in plain words what else a value is."""
    if kind is None:
        return "value of unknown type"
    which = kind.WhichOneof("value")
    words = {
        "tensor_type": "tensor",
        "sparse_tensor_type": "sparse tensor",
        "sequence_type": "sequence",
        "map_type": "map",
        "optional_type": "optional",
        "opaque_type": "opaque value",
    }
    return words.get(which or "", "value of unknown type")


def word_of(kind: TypeProto | None) -> str | None:
    """Datatype word of a tensor that DIN can carry, else None."""
    if kind is None or kind.WhichOneof("value") != "tensor_type":
        return None
    return WORDS.get(kind.tensor_type.elem_type)


def shape_of(kind: TypeProto) -> tuple[Dim, ...] | None:
    """Shape with symbols; None when the rank is unknown."""
    if not kind.tensor_type.HasField("shape"):
        return None
    dims: list[Dim] = []
    for dim in kind.tensor_type.shape.dim:
        which = dim.WhichOneof("value")
        if which == "dim_value" and dim.dim_value >= 0:
            dims.append(dim.dim_value)
        elif which == "dim_param" and is_symbol(dim.dim_param):
            dims.append(dim.dim_param)
        else:
            dims.append(None)
    return tuple(dims)


def spec_of(name: str, kind: TypeProto) -> TensorSpec:
    """Signature of one value. Raises BadModel when it is no tensor that DIN carries."""
    word = word_of(kind)
    if word is None:
        raise BadModel(
            f"{name!r} is {describe(kind)}, which DIN cannot carry",
            hint="inputs and outputs must be tensors of a fixed-size element type or strings",
        )
    return TensorSpec(name, word, shape_of(kind))


def signature_of(
    names: Iterable[str], types: Mapping[str, TypeProto], role: str
) -> tuple[TensorSpec, ...]:
    """Signatures of graph inputs or outputs (`role`). Raises BadModel naming the one that fails."""
    for name in names:
        kind = types.get(name)
        if not name:
            raise BadModel(
                f"an {role} has no name, so that nobody can give or take it",
                hint="export the model again with a name for each",
            )
        if word_of(kind) is None:
            raise BadModel(
                f"{role} {name!r} is {describe(kind)}, not a tensor that DIN carries",
                hint="export the model with plain tensors (for scikit-learn: options zipmap=False)",
            )
    return tuple(spec_of(name, types[name]) for name in names)


def describe(kind: TypeProto | None) -> str:
    """A value's kind for an error text: `a sequence`, `a tensor of INT4`, ..."""
    what = kind_of(kind)
    if kind is None or what != "tensor":
        return f"an {what}" if what.startswith("o") else f"a {what}"
    number = kind.tensor_type.elem_type
    names = {each: name for name, each in TensorProto.DataType.items()}
    return f"a tensor of {names.get(number, f'element type {number}')}"


def bytes_of_elements(elem_type: int, count: int) -> int:
    """Bytes of `count` elements; strings by an assumed size, unknown types as 4 bytes each."""
    word = WORDS.get(elem_type)
    if word == BYTES:
        return count * STRING_BYTES_ASSUMED
    if word is not None:
        return count * DTYPE_BYTES[word]
    return -(-count * BITS_OF_OTHERS.get(elem_type, 32) // 8)


def fixed_dims(kind: TypeProto) -> tuple[int, ...] | None:
    """Dims of a tensor of which every one is known, else None."""
    if not kind.tensor_type.HasField("shape"):
        return None
    found = kind.tensor_type.shape.dim
    dims = tuple([dim.dim_value for dim in found])
    # What is not given reads as 0, which few are; asking each dim costs more.
    return None if min(dims, default=1) < 1 and any(map(is_free, found)) else dims


def is_free(dim: TensorShapeProto.Dimension) -> bool:
    """Some exporters write -1 where others write a symbol or nothing."""
    return dim.WhichOneof("value") != "dim_value" or dim.dim_value < 0


def fixed_bytes(kind: TypeProto | None) -> int | None:
    """Bytes of a value whose type and every dim are known, else None."""
    dims = None if kind is None else fixed_dims(kind)
    if kind is None or dims is None or kind.tensor_type.elem_type == TensorProto.STRING:
        return None
    return bytes_of_elements(kind.tensor_type.elem_type, prod(dims))


def exact_bytes(tensor: TensorProto) -> int | None:
    """Bytes of a stored tensor as raw data; None for strings and types of unknown size."""
    word = WORDS.get(tensor.data_type)
    if word == BYTES or (word is None and tensor.data_type not in BITS_OF_OTHERS):
        return None
    return bytes_of_elements(tensor.data_type, prod(tensor.dims))


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of a stored tensor as it lies in memory."""
    return bytes_of_elements(tensor.data_type, prod(tensor.dims))
