"""Inputs for calibrating, from files of numpy to the one file that is uploaded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from din.client.client import Client
from din.domain.calibration import (
    FILE_BYTES_MAX,
    GIVEN_MAX,
    CalibrationFile,
    encode_calibration,
)
from din.domain.profile import GivenTensor
from din.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

KINDS: Final = (".npz", ".npy")
ONLY_INPUT: Final = ""
"""Stands for the input of a model that has one."""


def read_calibration(path: Path | None) -> bytes:
    """What is uploaded for a folder with a sample in each file, or for one file of samples; nothing
    for None. Raises UsageError naming the file that is wrong, BadTensor."""
    if path is None:
        return b""
    from din.client.arrays import encode_array

    arrays = _stacked(path) if path.is_dir() else _arrays_in(path)
    nbytes = sum(each.nbytes for each in arrays.values())
    if nbytes > FILE_BYTES_MAX:
        raise UsageError(
            f"the calibration inputs in {path} have {nbytes} bytes, over {FILE_BYTES_MAX}",
            hint="give fewer samples: a few that differ tell more than many alike",
        )
    tensors: list[GivenTensor] = []
    for name, array in arrays.items():
        datatype, raw = encode_array(name, array)
        tensors.append(
            GivenTensor(name=name, datatype=datatype, shape=array.shape, data=bytes(raw))
        )
    return encode_calibration(CalibrationFile(tensors=tuple(tensors)))


def upload_calibration(client: Client, data: bytes, encrypt: bool | None) -> str:
    """The SHA256 under which the gateway keeps it. Raises DinError."""
    with tempfile.NamedTemporaryFile(prefix="din-calibration-") as file:
        file.write(data)
        file.flush()
        return client.upload(file.name, encrypt=encrypt)


def _arrays_in(path: Path) -> Arrays:
    from din.cli.infer import load_arrays

    if path.suffix not in KINDS:
        raise UsageError(
            f"calibration inputs {str(path)!r} are no file of numpy",
            hint="give a folder with one sample in each .npz or .npy file, or FILE.npz with arrays "
            "by the names of the inputs, whose first axis counts samples",
        )
    found = load_arrays(path)
    arrays = found if isinstance(found, dict) else {ONLY_INPUT: found}
    if not arrays:
        raise UsageError(f"{path} holds no array", hint="name arrays as the inputs of the model")
    return arrays


def _stacked(folder: Path) -> Arrays:
    """The samples of a folder, in the order of their names."""
    import numpy as np

    files = sorted(each for each in folder.iterdir() if each.suffix in KINDS)
    if not 1 <= len(files) <= GIVEN_MAX:
        raise UsageError(
            f"folder {folder} holds {len(files)} samples",
            hint=f"from 1 to {GIVEN_MAX} files .npz or .npy, a sample in each",
        )
    samples = [_arrays_in(each) for each in files]
    kinds = [{name: (a.dtype, a.shape) for name, a in each.items()} for each in samples]
    for file, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            raise UsageError(
                f"sample {file} holds {_told(kind)}, and {files[0].name} {_told(kinds[0])}",
                hint="all samples have the same arrays, of one datatype and size",
            )
    return {name: np.stack([each[name] for each in samples]) for name in samples[0]}


def _told(kind: Mapping[str, tuple[Any, tuple[int, ...]]]) -> str:
    return ", ".join(
        f"{name or 'an array'} {dtype} {list(shape)}" for name, (dtype, shape) in kind.items()
    )
