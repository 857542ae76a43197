"""Options of each adapter as the manifest may write them. Pure: the gateway checks them too."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

SIDE_MAX: Final = 8192

Side = Annotated[int, Meta(ge=1, le=SIDE_MAX)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Three = tuple[float, float, float]


class ImageOptions(Struct, frozen=True, kw_only=True):
    """`image`: a JPEG, PNG or WebP file becomes `(pixel * scale - mean) / std`."""

    size: tuple[Side, Side] | None = None
    """Width and height of the tensor. Without it: `max_side`, or what the model declares."""
    max_side: Side | None = None
    """The longer side at most; a smaller picture is not enlarged."""
    multiple_of: Annotated[int, Meta(ge=1, le=256)] = 32
    """With `max_side`: width and height are padded to multiples of this."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    color: Literal["RGB", "BGR"] = "RGB"
    scale: float = 1.0
    mean: Three = (0.0, 0.0, 0.0)
    std: Three = (1.0, 1.0, 1.0)
    fit: Literal["letterbox", "stretch"] = "letterbox"
    padding: Annotated[int, Meta(ge=0, le=255)] = 0
    """Grey value of the bars beside a letterboxed picture."""
    pixels_max: Annotated[int, Meta(ge=1, le=400_000_000)] = 50_000_000
    """A picture that unpacks to more is refused before it is unpacked."""

    def __post_init__(self) -> None:
        if self.size is not None and self.max_side is not None:
            raise ValueError("size and max_side exclude each other")
        if not all(self.std):
            raise ValueError("std must not hold a zero")


class CenterFaceHeads(Struct, frozen=True, kw_only=True):
    """Which tensor of the model is which head."""

    heat: Name
    scale: Name
    offset: Name
    landmarks: Name


class CenterFaceOptions(Struct, frozen=True, kw_only=True):
    """`centerface`: heat map and box heads become faces."""

    outputs: CenterFaceHeads | None = None
    """By default the model's outputs in their order: heat, scale, offset, landmarks."""
    threshold: Fraction = 0.5
    """Faces with a lower score are left out."""
    nms: Fraction = 0.3
    """Of two boxes that overlap by more than this, the weaker is left out."""
    stride: Annotated[int, Meta(ge=1, le=64)] = 4
    """Pixels of the input per cell of the heat map."""
    faces_max: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    label: Annotated[str, Meta(max_length=128)] = "face"


class ClassifyOptions(Struct, frozen=True, kw_only=True):
    """`classify`: a vector of class scores becomes the best few classes."""

    output: Name | None = None
    """By default the model's only output."""
    softmax: bool = True
    """False when the model's scores are probabilities already."""
    top_k: Annotated[int, Meta(ge=1, le=1000)] = 5
    labels: Annotated[
        tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=100_000)
    ] = ()
    """Names by class number; a class without one is named by its number."""
