"""Models larger than memory should be: the carver reads each weight once and holds none."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from onnx import TensorProto, helper

from din.carver.carve import open_contents
from din.domain.gateway_view import ErrorView
from din.domain.model import EXTERNAL_FILES_MAX, CarveAnswer, CarveRequest, ExternalFile
from din.domain.strategy import Strategy
from din.errors import TooLarge

pytestmark = pytest.mark.system

MIB = 1024 * 1024
ROWS = 1024
MARKED_AT = 5 * MIB + 12


def products(folder: Path, layers: int, mib: int) -> Path:
    """So many products in a row, each with weights of `mib` MiB in one sparse file."""
    columns = mib * MIB // 4 // ROWS
    nodes, weights = [], []
    for layer in range(layers):
        weight = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=[ROWS, columns])
        weight.data_location = TensorProto.EXTERNAL
        where = {"location": "w.bin", "offset": layer * mib * MIB, "length": mib * MIB}
        for key, value in where.items():
            weight.external_data.add(key=key, value=str(value))
        weights.append(weight)
        nodes += [
            helper.make_node(
                "MatMul", [f"x{layer}", weight.name], [f"y{layer}"], f"product{layer}"
            ),
            helper.make_node("MatMul", [f"y{layer}", "back"], [f"x{layer + 1}"], f"back{layer}"),
        ]
    back = TensorProto(name="back", data_type=TensorProto.FLOAT, dims=[columns, ROWS])
    back.data_location = TensorProto.EXTERNAL
    back.external_data.add(key="location", value="w.bin")
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x0", TensorProto.FLOAT, [1, ROWS])],
        [info(f"x{layers}", TensorProto.FLOAT, [1, ROWS])],
        [*weights, back],
    )
    opsets = [helper.make_opsetid("", 17)]
    path = folder / "model.onnx"
    path.write_bytes(
        helper.make_model(graph, ir_version=8, opset_imports=opsets).SerializeToString()
    )
    with (folder / "w.bin").open("wb") as file:
        file.truncate(layers * mib * MIB)
        file.seek(MARKED_AT)
        file.write(b"not all of it is zero")
    return path


def request_for(path: Path, out: Path, *points: str, **more: object) -> CarveRequest:
    file = ExternalFile(path=str(path.parent / "w.bin"), sha256="ab" * 32)
    return CarveRequest(
        model_path=str(path),
        output_path=str(out),
        source_sha256="cd" * 32,
        external={"w.bin": file},
        strategy=Strategy(partition_points=points),
        **more,
    )


MEASURED = (
    "import json, resource, sys\n"
    "from din.carver.__main__ import main\n"
    "code = main()\n"
    "own = next(line.split()[1] for line in open('/proc/self/status') if 'VmHWM' in line)\n"
    # Not RUSAGE_SELF: that remembers who started this program.
    "peak = int(own) + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
    "print(json.dumps([code, peak]), file=sys.stderr)\n"
)


def carved(request: CarveRequest) -> tuple[bytes, int]:
    """What the carver says, and the most memory that its two processes had resident, in MiB."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED],
        input=msgspec.json.encode(request),
        capture_output=True,
        timeout=280,
        check=True,
    )
    code, peak_kib = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stdout
    return done.stdout, peak_kib // 1024


def check_large(folder: Path, layers: int, mib: int, memory_mib: int) -> None:
    out = folder / "out"
    out.mkdir()
    path = products(folder, layers, mib)
    said, peak_mib = carved(request_for(path, out, f"back{layers // 2}"))
    assert peak_mib < memory_mib, "weights were held in memory"
    found = msgspec.json.decode(said, type=CarveAnswer)
    assert found.source_sha256 == "cd" * 32
    files = {each.sha256: each.nbytes for part in found.slices for each in part.artifacts}
    assert {each.name: each.stat().st_size for each in out.iterdir()} == files
    for sha256 in files:
        with (out / sha256).open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == sha256
    assert sum(each.bytes_weights for each in found.slices) >= layers * mib * MIB
    # One slice needs all of the file: nothing is written but its model.
    again = folder / "again"
    again.mkdir()
    said, peak_mib = carved(request_for(path, again, as_is=("w.bin",)))
    assert peak_mib < memory_mib, "weights were held in memory"
    (whole,) = msgspec.json.decode(said, type=CarveAnswer).slices
    assert [each.name for each in again.iterdir()] == [whole.artifacts[0].sha256]
    assert (whole.artifacts[1].sha256, whole.artifacts[1].nbytes) == ("ab" * 32, layers * mib * MIB)


def test_weights_pass_through_the_carver_and_stay_nowhere_in_it(tmp_path: Path) -> None:
    check_large(tmp_path, layers=6, mib=50, memory_mib=160)


@pytest.mark.slow
def test_over_two_gigabytes_cost_no_more_memory(tmp_path: Path) -> None:
    """T27."""
    check_large(tmp_path, layers=12, mib=200, memory_mib=250)


def test_a_full_disk_in_the_middle_of_a_pack_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    path = products(tmp_path, 2, 4)
    program = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB}, {MIB}))\n"
        "from din.carver.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=msgspec.json.encode(request_for(path, out)),
        capture_output=True,
        check=False,
    )
    error = msgspec.json.decode(done.stdout, type=ErrorView)
    assert error.message.startswith("no room for a file of 8388608 bytes")
    assert list(out.iterdir()) == []


def test_a_file_that_is_shorter_than_its_weights_is_named(tmp_path: Path) -> None:
    path = products(tmp_path, 2, 4)
    os.truncate(tmp_path / "w.bin", 5 * MIB)
    done = subprocess.run(
        [sys.executable, "-m", "din.carver"],
        input=msgspec.json.encode(request_for(path, tmp_path)),
        capture_output=True,
        check=False,
    )
    error = msgspec.json.decode(done.stdout, type=ErrorView)
    assert error.code == "DIN-120"
    assert f"'w.bin' up to byte {8 * MIB}, and it has {5 * MIB}" in error.message


def test_the_files_beside_a_model_are_counted_before_one_is_opened(tmp_path: Path) -> None:
    request = request_for(tmp_path / "none", tmp_path)
    many = {str(each): request.external["w.bin"] for each in range(EXTERNAL_FILES_MAX + 1)}
    with pytest.raises(TooLarge, match=f"more than {EXTERNAL_FILES_MAX}"):
        open_contents(msgspec.structs.replace(request, external=many))
