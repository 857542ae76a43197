"""Forms of model files. ONNX is cut into slices; a file of another form is run whole, by an engine
that takes this form and no ONNX."""

from __future__ import annotations

from typing import Final, NamedTuple

ONNX: Final = "onnx"
TFLITE: Final = "tflite"
NCNN: Final = "ncnn"
FORM_BYTES: Final = 8
"""Of the beginning of a file: what tells its form."""


class Form(NamedTuple):
    """Files that one engine, or several, take as they are."""

    name: str
    suffix: str
    """Of such files, as their makers call them."""
    backends: tuple[str, ...]
    """Engines that take them; the first is meant where nobody says which."""


WHOLE: Final = (
    Form(TFLITE, ".tflite", ("litert", "coral")),
    Form(NCNN, ".param", ("ncnn",)),
)


def form_of(begin: bytes) -> Form | None:
    """The form of a file that begins so; None = it is ONNX, or nothing that DIN knows."""
    if begin[4:8] == b"TFL3":
        return WHOLE[0]
    if begin[:7] == b"7767517" and begin[7:8] in (b"\n", b"\r"):
        return WHOLE[1]
    return None


def runs_whole(backend: str) -> bool:
    """Whether slices of this backend are files that nobody cuts, in a form of its own."""
    return any(backend in form.backends for form in WHOLE)
