"""What a .param file of ncnn, a text, takes and gives; its weights lie in a .bin beside it."""

from __future__ import annotations

from typing import Final

from din.domain.model import MODEL_FILE
from din.domain.tensor import Dim, TensorSpec
from din.errors import BadModel, TooLarge
from din.slicing.reading import Read, check_names

TEXT_BYTES_MAX: Final = 16 * 1024 * 1024
LAYERS_MAX: Final = 20_000
BLOBS_MAX: Final = 65_536
WORD_CHARACTERS_MAX: Final = 255
"""Longer names overrun nothing today, and did in older ncnn."""
MAGIC: Final = "7767517"
_SIZES: Final = (("2", "11", "1", "0"), ("2", "1", "0"), ("1", "0"), ("0",))
"""Parameters of an Input that say its size, outermost first; 11 is the depth."""


def read_ncnn(files: dict[str, memoryview]) -> Read:
    """Raises BadModel for what is no such file, and without its weights; TooLarge."""
    weights = [data for location, data in files.items() if location != MODEL_FILE]
    if len(weights) != 1:
        raise BadModel(
            f"a .param file has its weights in one .bin file, {len(weights)} came with it",
            hint="keep both in one folder under one name: net.param and net.bin",
        )
    lines = _lines(files[MODEL_FILE])
    layers = [_layer(number, line) for number, line in enumerate(lines[2:], 3)]
    _check_counts(lines[1], layers)
    inputs = [_input(layer) for layer in layers if layer.kind == "Input"]
    taken = {name for layer in layers for name in layer.bottoms}
    made = [name for layer in layers for name in layer.tops if name not in taken]
    outputs = [TensorSpec(name, "FP32", None) for name in made]
    check_names(inputs, "input")
    check_names(outputs, "output")
    if not inputs or not outputs:
        raise BadModel("the .param file has no input or no output", hint="export it again")
    return Read(
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        operators=len(layers),
        weights_bytes=len(weights[0]),
        peak_bytes=0,
        backend="ncnn",
    )


class _Layer:
    def __init__(self, kind: str, bottoms: list[str], tops: list[str], values: list[str]) -> None:
        self.kind, self.bottoms, self.tops = kind, bottoms, tops
        pairs = (each.partition("=") for each in values)
        self.values = {key: text for key, _, text in pairs}


def _lines(data: memoryview) -> list[str]:
    if len(data) > TEXT_BYTES_MAX:
        raise TooLarge(
            f"the .param file has {len(data)} bytes; such a file has at most {TEXT_BYTES_MAX}",
            hint="weights belong into the .bin file",
        )
    try:
        text = str(data, "ascii")
    except UnicodeDecodeError as error:
        raise BadModel(f"the .param file is no text: byte {error.start}") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 3 or lines[0].strip() != MAGIC:
        raise BadModel("the .param file holds no layers", hint="export it again")
    return lines


def _layer(number: int, line: str) -> _Layer:
    words = line.split()
    try:
        kind, _, takes, gives, *rest = words
        counts = int(takes), int(gives)
    except ValueError:
        raise BadModel(f"line {number} of the .param file is no layer: {line[:80]!r}") from None
    blobs = sum(counts)
    if min(counts) < 0 or blobs > len(rest) or max(map(len, words)) > WORD_CHARACTERS_MAX:
        raise BadModel(
            f"line {number} of the .param file names {len(rest)} values and says {counts[0]} in "
            f"and {counts[1]} out: {line[:80]!r}",
            hint="the file may be cut off; compare its SHA256 with the original",
        )
    return _Layer(kind, rest[: counts[0]], rest[counts[0] : blobs], rest[blobs:])


def _check_counts(line: str, layers: list[_Layer]) -> None:
    """ncnn makes room by these numbers before it reads on."""
    made = [name for layer in layers for name in layer.tops]
    words = line.split()
    if words != [str(len(layers)), str(len(made))] or len(layers) > LAYERS_MAX:
        raise BadModel(
            f"the .param file says {line.strip()[:40]!r} layers and values, and has {len(layers)} "
            f"and {len(made)} (at most {LAYERS_MAX} and {BLOBS_MAX})",
            hint="the file may be cut off; compare its SHA256 with the original",
        )
    known: set[str] = set()
    for layer in layers:
        for name in layer.bottoms:
            if name not in known:
                raise BadModel(f"a layer {layer.kind} takes {name!r} before any layer makes it")
        for name in layer.tops:
            if name in known:
                raise BadModel(f"two layers make {name!r}")
            known.add(name)
    if len(known) > BLOBS_MAX:
        raise TooLarge(f"the .param file has {len(known)} values, more than {BLOBS_MAX}")


def _input(layer: _Layer) -> TensorSpec:
    """With the sizes that the file gives; ncnn itself has no batch."""
    if len(layer.tops) != 1:
        raise BadModel(f"an Input of the .param file makes {len(layer.tops)} values")
    for keys in _SIZES:
        found = [layer.values.get(key, "0") for key in keys]
        if all(each.isdecimal() and len(each) < 10 and int(each) > 0 for each in found):
            dims: tuple[Dim, ...] = tuple(map(int, found))
            return TensorSpec(layer.tops[0], "FP32", dims)
    return TensorSpec(layer.tops[0], "FP32", None)
