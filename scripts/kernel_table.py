"""Writes src/din/domain/kernels.py: which operators ONNX Runtime has kernels for on the processor.

    python scripts/kernel_table.py 1.30=FOLDER 1.31=FOLDER

Each folder holds another release, as `pip install --target FOLDER --no-deps onnxruntime==1.30.0`
makes one; the release of this environment comes last. Run it when the lock moves to a new release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import wrap
from typing import Final

TARGET: Final = Path(__file__).parents[1] / "src" / "din" / "domain" / "kernels.py"
OPEN: Final = 2**31 - 1
WIDTH: Final = 96
ASK: Final = """
import json, logging
import onnxruntime as ort
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

ort.set_default_logger_severity(4)

def loads(ir_version, opset):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    sets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, ir_version=ir_version, opset_imports=sets)
    try:
        ort.InferenceSession(model.SerializeToString())
    except Exception:  # the engine raises a dozen unrelated classes; each means that it refuses
        return False
    return True

kernels = {}
for each in get_all_opkernel_def():
    if each.provider == "CPUExecutionProvider" and not each.domain.endswith("nchwc"):
        name = f"{each.domain}.{each.op_name}" if each.domain else each.op_name
        kernels.setdefault(name, set()).add(tuple(each.version_range))
print(json.dumps({
    "version": ort.__version__,
    "ir_version": max(each for each in range(3, 40) if loads(each, 13)),
    "opset": max(each for each in range(7, 60) if loads(8, each)),
    "kernels": {name: sorted(kernels[name]) for name in sorted(kernels)},
}))
"""


def asked(folder: str) -> dict[str, object]:
    """What one release says of itself."""
    path = {"PYTHONPATH": folder} if folder else {}
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **path}
    found = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, check=True
    )
    return json.loads(found.stdout)


def ranges_text(ranges: list[list[int]]) -> str:
    """`6-12,13+`: closed ranges that touch become one."""
    merged: list[list[int]] = []
    for low, high in ranges:
        if merged and merged[-1][1] + 1 == low and high != OPEN:
            merged[-1][1] = high
        else:
            merged.append([low, high])
    return ",".join(
        f"{low}+" if high == OPEN else f"{low}-{high}" if high > low else str(low)
        for low, high in merged
    )


def main() -> None:
    """Ask every release, write the module."""
    folders = [each.partition("=")[2] for each in sys.argv[1:]]
    releases = [asked(folder) for folder in (*folders, "")]
    newest: dict[str, list[list[int]]] = releases[-1]["kernels"]
    entries = [f"{name} {ranges_text(ranges)}" for name, ranges in newest.items()]
    lines = [
        '"""Written by scripts/kernel_table.py: kernels of ONNX Runtime on the processor."""',
        "",
        "from __future__ import annotations",
        "",
        "from typing import Final",
        "",
        "RELEASES: Final[dict[str, tuple[int, int]]] = {",
    ]
    lines += [f'    "{minor(each)}": ({each["ir_version"]}, {each["opset"]}),' for each in releases]
    lines += ["}", '"""Newest IR version and operator set that a release takes."""', ""]
    lines += ["NEW_IN: Final[dict[str, str]] = {"]
    known: set[str] = set(releases[0]["kernels"])
    for each in releases[1:]:
        fresh = sorted(set(each["kernels"]) - known)
        known |= set(fresh)
        if fresh:
            lines.append(f'    "{minor(each)}": """')
            lines += [*wrap(" ".join(fresh), WIDTH), '""",']
    lines += ["}", '"""Operators that no release before had."""', "", 'KERNELS: Final = """']
    lines += [*wrap("; ".join(entries), WIDTH, break_on_hyphens=False), '"""']
    lines += ['"""Operator and the versions of it that kernels take; `13+` is version 13 alone."""']
    TARGET.write_text("\n".join(lines) + "\n")


def minor(release: dict[str, object]) -> str:
    """`1.32` of 1.32.0."""
    return ".".join(str(release["version"]).split(".")[:2])


if __name__ == "__main__":
    main()
