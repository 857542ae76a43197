"""Where the models that `scripts/fetch_models.py` brings lie."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "models"


def path_of(name: str) -> Path:
    """Path of a fetched model. Raises FileNotFoundError saying how to fetch it."""
    suffix = ".tflite" if name.endswith("-lite") else ".onnx"
    path = FOLDER / f"{name}{suffix}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; run `python scripts/fetch_models.py {name}`")
    return path
