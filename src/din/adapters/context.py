"""What `image` tells `centerface` about the picture: the way back to its own pixels."""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from din.adapters.arrays import Array
from din.adapters.catalogue import CONTEXT_BYTES_MAX
from din.domain.malformed import MALFORMED
from din.errors import BadTensor

_Scale = Annotated[float, Meta(gt=0, le=100_000)]
_Pixels = Annotated[int, Meta(ge=0, le=1_000_000)]


class ImageContext(Struct, frozen=True, kw_only=True):
    """A pixel (x, y) of the picture lies at (x * scale_x + pad_x, y * scale_y + pad_y) of the
    tensor."""

    width: _Pixels
    height: _Pixels
    scale_x: _Scale
    scale_y: _Scale
    pad_x: _Pixels
    pad_y: _Pixels


def encode_context(context: ImageContext) -> Array:
    """As a UINT8 tensor of JSON."""
    return np.frombuffer(msgspec.json.encode(context), np.uint8)


def decode_context(tensor: Array) -> ImageContext:
    """Raises BadTensor for anything that `encode_context` did not write."""
    data = tensor[: CONTEXT_BYTES_MAX + 1].tobytes()
    try:
        if len(data) <= CONTEXT_BYTES_MAX:
            return msgspec.json.decode(data, type=ImageContext)
        reason = f"it is over {CONTEXT_BYTES_MAX} bytes"
    except MALFORMED as error:
        reason = str(error)
    raise BadTensor(f"the picture's context is no JSON that adapter image writes: {reason}")
