"""Inputs of the user's own for calibrating and checking encodings: one file, stored by its hash
beside the model, of tensors whose first axis counts samples. Read and written as MessagePack."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct

from din.domain.encoding import SAMPLES_MAX
from din.domain.profile import GivenTensor
from din.errors import BadTensor

GIVEN_MAX: Final = 2 * SAMPLES_MAX
"""Samples of one file: every second one calibrates, the others check."""
FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class CalibrationFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All samples of one model."""

    tensors: tuple[GivenTensor, ...]
    """Of shape [samples, ...], or of one sample as it is; the name "" stands for the only input of
    a model."""


def encode_calibration(file: CalibrationFile) -> bytes:
    """As it is uploaded."""
    return msgspec.msgpack.encode(file)


def decode_calibration(data: bytes) -> CalibrationFile:
    """Raises BadTensor for what is no such file."""
    try:
        return msgspec.msgpack.decode(data, type=CalibrationFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadTensor(
            f"the calibration inputs cannot be read: {error}",
            hint="give them by `din model register --calibration-inputs`, which writes the file",
        ) from None
