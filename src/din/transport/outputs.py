"""What a worker says of its outputs, held against what tensors can be and what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from din.domain.tensor import BYTES, DTYPE_BYTES, TensorMeta, nbytes_of
from din.errors import Internal

RANK_MAX: Final = 16


def check_metas(metas: Sequence[TensorMeta]) -> None:
    """Names are unique and sizes those of dtype and shape. Raises Internal."""
    names = [meta.name for meta in metas]
    if len(set(names)) != len(names):
        raise Internal(f"outputs {names} came, one of them twice")
    for meta in metas:
        has_shape = len(meta.shape) <= RANK_MAX and all(size >= 0 for size in meta.shape)
        is_sized = meta.nbytes >= 0 and (
            meta.dtype == BYTES
            or (
                (meta.dtype in DTYPE_BYTES and has_shape)
                and nbytes_of(meta.dtype, meta.shape) == meta.nbytes
            )
        )
        if not (has_shape and is_sized):
            raise Internal(f"{said_of(meta)} is not a tensor")


def check_wanted(metas: Sequence[TensorMeta], wanted: tuple[str, ...]) -> None:
    """The outputs asked for, in their order. Raises Internal."""
    names = tuple(meta.name for meta in metas)
    if names != wanted:
        raise Internal(f"outputs {names} came, {wanted} were asked for")


def said_of(meta: TensorMeta) -> str:
    """An output in words."""
    return f"output {meta.name!r} {meta.dtype} {list(meta.shape)} of {meta.nbytes} bytes"
