"""`image`: a JPEG, PNG or WebP file becomes the tensor that the model takes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from PIL import Image, ImageOps

from din.adapters.arrays import Array
from din.adapters.catalogue import IMAGE_TENSOR
from din.adapters.context import ImageContext, encode_context
from din.adapters.options import ImageOptions
from din.domain.model import CONTEXT_TENSOR
from din.domain.tensor import TensorSpec
from din.errors import BadTensor

FORMATS: Final = ("JPEG", "PNG", "WEBP")
SCANS_MAX: Final = 64
"""Of a JPEG: each costs as much as the whole picture, and a few bytes. Cameras and programs make at
most a dozen; a thumbnail inside adds its own."""
_SCAN: Final = b"\xff\xda"
"""Begins a scan, and is nowhere inside one."""

# The size is checked against our own limit before any pixel is unpacked.
Image.MAX_IMAGE_PIXELS = None


class ImageAdapter:
    """One configured adapter."""

    def __init__(
        self,
        options: ImageOptions,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._options = options
        self._target = next(spec for spec in outputs if spec.name != CONTEXT_TENSOR)
        self._size = _fixed_size(options, self._target)

    def run(
        self, inputs: Mapping[str, Array], wanted: Sequence[str], targets: Mapping[str, Array]
    ) -> dict[str, Array]:
        """Raises BadTensor for bytes that are no picture, a broken one or a giant one."""
        del wanted
        data: bytes = inputs[IMAGE_TENSOR].reshape(-1)[0]
        picture = open_picture(data, self._options.pixels_max)
        pixels, context = self._fit(picture)
        result = targets.get(self._target.name)
        return {
            self._target.name: self._normalise(pixels, result),
            CONTEXT_TENSOR: encode_context(context),
        }

    def stop(self) -> None:
        """A picture is unpacked in one go: its size limit bounds the time."""

    def warm(self) -> bool:
        """Unpack a small picture of our own."""
        buffer = io.BytesIO()
        Image.new("RGB", (64, 48), (90, 120, 150)).save(buffer, "PNG")
        element = np.empty(1, np.object_)
        element[0] = buffer.getvalue()
        self.run({IMAGE_TENSOR: element}, (), {})
        return True

    def _fit(self, picture: Image.Image) -> tuple[Array, ImageContext]:
        width, height = picture.size
        full_width, full_height, inner_width, inner_height = self._sizes(width, height)
        if (inner_width, inner_height) != (width, height):
            picture = picture.resize((inner_width, inner_height), Image.Resampling.BILINEAR)
        pad_x, pad_y = (full_width - inner_width) // 2, (full_height - inner_height) // 2
        pixels: Array = np.asarray(picture)
        if (inner_width, inner_height) != (full_width, full_height):
            canvas = np.full((full_height, full_width, 3), self._options.padding, np.uint8)
            canvas[pad_y : pad_y + inner_height, pad_x : pad_x + inner_width] = pixels
            pixels = canvas
        return pixels, ImageContext(
            width=width,
            height=height,
            scale_x=inner_width / width,
            scale_y=inner_height / height,
            pad_x=pad_x,
            pad_y=pad_y,
        )

    def _sizes(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Width and height of the tensor, then of the picture inside it."""
        if self._size is not None:
            full_width, full_height = self._size
            if self._options.fit == "stretch":
                return full_width, full_height, full_width, full_height
            scale = min(full_width / width, full_height / height)
            inner_width = min(full_width, max(1, round(width * scale)))
            return (
                full_width,
                full_height,
                inner_width,
                min(full_height, max(1, round(height * scale))),
            )
        scale = min(1.0, (self._options.max_side or width) / max(width, height))
        inner_width, inner_height = max(1, round(width * scale)), max(1, round(height * scale))
        step = self._options.multiple_of
        full_width, full_height = -(-inner_width // step) * step, -(-inner_height // step) * step
        if self._options.fit == "stretch":
            return full_width, full_height, full_width, full_height
        return full_width, full_height, inner_width, inner_height

    def _normalise(self, pixels: Array, target: Array | None) -> Array:
        options = self._options
        if options.color == "BGR":
            pixels = pixels[:, :, ::-1]
        if options.scale != 1.0 or any(options.mean) or options.std != (1.0, 1.0, 1.0):
            factor = np.float32(options.scale) / np.array(options.std, np.float32)
            shift = np.array(options.mean, np.float32) / np.array(options.std, np.float32)
            pixels = pixels * factor - shift
        shaped = (pixels.transpose(2, 0, 1) if options.layout == "NCHW" else pixels)[np.newaxis]
        dtype = {"FP32": np.float32, "FP16": np.float16, "UINT8": np.uint8}[self._target.dtype]
        if target is None or target.shape != shaped.shape:
            target = np.empty(shaped.shape, dtype)
        np.copyto(target, shaped, casting="unsafe")
        return target


def open_picture(data: bytes, pixels_max: int) -> Image.Image:
    """An upright RGB picture. Raises BadTensor saying what is wrong with the bytes."""
    if not data:
        raise BadTensor("the image is empty", hint="send the bytes of a JPEG, PNG or WebP file")
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:  # Pillow's parsers raise whatever they stumble over
        raise BadTensor(
            f"the image is not a JPEG, PNG or WebP file ({len(data)} bytes)",
            hint="give a JPEG, PNG or WebP file; over HTTP its bytes themselves, in JSON as base64",
        ) from error
    if picture.format == "JPEG" and (scans := data.count(_SCAN)) > SCANS_MAX:
        raise BadTensor(
            f"the JPEG has {scans} scans; the limit is {SCANS_MAX}", hint="save it anew"
        )
    width, height = picture.size
    if width * height > pixels_max:
        raise BadTensor(
            f"the image unpacks to {width} x {height} pixels, over the limit of {pixels_max}",
            hint="scale it down, or raise the adapter's option pixels_max",
        )
    try:
        picture.load()
        return _eight_bits(_upright(picture)).convert("RGB")
    except MemoryError:
        raise
    except Exception as error:
        raise BadTensor(
            f"the image is broken or cut short: {error}", hint="send the whole file"
        ) from error


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Grey of 16 bits as the upper 8 of them: `convert` would make all but the darkest white."""
    if not picture.mode.startswith("I"):
        return picture
    return Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except (ValueError, TypeError, KeyError, OSError, SyntaxError):
        return picture  # a broken EXIF block says nothing about the orientation


def _fixed_size(options: ImageOptions, target: TensorSpec) -> tuple[int, int] | None:
    if options.size is not None or options.max_side is not None:
        return options.size
    shape = target.shape or (None, None, None, None)
    first = 2 if options.layout == "NCHW" else 1
    height, width = shape[first], shape[first + 1]
    return (width, height) if isinstance(width, int) and isinstance(height, int) else None
