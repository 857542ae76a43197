"""Boxes on a photo. The only file of the command line with Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, UnidentifiedImageError

from din.errors import UsageError

COLOUR: Final = (255, 64, 32)
LABEL_CHARS_MAX: Final = 64


def draw_boxes(
    photo: Path, target: Path, rows: list[tuple[list[float], float | None, str]] | None
) -> None:
    """Write a copy of the photo with its boxes. Raises UsageError and OSError."""
    if rows is None:
        raise UsageError(
            "the result holds no boxes to draw",
            hint="use --output result.json, or register the model with an adapter that makes boxes",
        )
    try:
        image = Image.open(photo)
    except UnidentifiedImageError:
        raise UsageError(
            f"{photo} is no image, so nothing can be drawn on it", hint="use --output result.json"
        ) from None
    # Boxes are in pixels of the photo as a person sees it: its EXIF turn is applied, as in DIN.
    from PIL import ImageOps

    with image:
        drawn = ImageOps.exif_transpose(image).convert("RGB")
    pen = ImageDraw.Draw(drawn)
    width = max(2, min(drawn.size) // 200)
    for box, score, label in rows:
        left, top, right, bottom = box[:4]
        corners = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
        pen.rectangle(corners, outline=COLOUR, width=width)
        text = f"{label[:LABEL_CHARS_MAX]} {score:.2f}" if score is not None else label
        pen.text((corners[0] + width + 2, corners[1] + width), text, fill=COLOUR)
    drawn.save(target)
