"""Boxes on a photo. The only file of the command line with Pillow."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError

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
        _write(drawn, (corners[0], corners[1]), text)
    drawn.save(target)


def _write(drawn: Image.Image, corner: tuple[float, float], text: str) -> None:
    """A label on its own ground above the corner; where the picture ends, inside it."""
    pen = ImageDraw.Draw(drawn)
    size = max(12, min(drawn.size) // 30)
    font = ImageFont.load_default(size)
    width, height = pen.textlength(text, font=font) + 6, size + 4
    left = max(min(corner[0], drawn.width - width), 0)
    top = corner[1] - height if corner[1] >= height else corner[1]
    pen.rectangle((left, top, left + width, top + height), COLOUR)
    pen.text((left + 3, top + 1), text, fill=(255, 255, 255), font=font)
