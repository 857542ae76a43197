"""Models that strangers made, in real workers of one zygote and in the carver: each ends in an
answer or in a clear error, reads nothing that is not its own, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from din.agent.pool import PoolSettings, WorkerPool
from din.agent.zygote import Zygote
from din.domain.model import Artifact, Slice
from din.errors import DinError, Internal
from din.system.arena import arena_layout
from tests.sandbox.hostile import SECRET, beside, models, mutants

pytestmark = pytest.mark.system

SETTINGS = PoolSettings(
    layout=arena_layout(1 << 16, 1 << 16), drain_timeout_s=0.1, load_timeout_s=20.0
)
CARVER = """
import json, os, sys
from din.carver.parting import carry_out
from din.domain.model import CarveRequest
from din.errors import DinError
import din.carver.packs, din.slicing.slicer  # once, and not for each
out = sys.argv[1]
before = len(os.listdir("/proc/self/fd"))
for path in sys.stdin.read().split("\\n"):
    try:
        carry_out(CarveRequest(model_path=path, output_path=out))
        print(json.dumps(["", "an answer"]))
    except DinError as error:
        print(json.dumps([error.code, error.message]))
try:
    os.waitpid(-1, os.WNOHANG)
    print(json.dumps("a process is left"))
except ChildProcessError:
    print(json.dumps(len(os.listdir("/proc/self/fd")) - before))
"""


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def children_of(pid: int | None) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def in_workers(folder: Path, given: Iterable[bytes]) -> list[tuple[str, str]]:
    """What became of each, in a worker of its own: code and words of an error, or an answer."""
    return asyncio.run(_in_workers(folder, given))


async def _in_workers(folder: Path, given: Iterable[bytes]) -> list[tuple[str, str]]:
    said: list[str] = []
    zygote = Zygote(asyncio.get_running_loop(), said.append)
    await zygote.start()
    pid = zygote.pid
    met: list[tuple[str, str]] = []
    descriptors = open_descriptors()
    part = Slice(
        index=0, slice_id="0" * 64, name="h/0", artifacts=(Artifact("0" * 64, 0),), inputs=(),
        outputs=(),
    )  # fmt: skip
    file = folder / "model.onnx"
    try:
        for data in given:
            file.write_bytes(data)
            pool = WorkerPool(
                zygote,
                on_worker_ready=lambda *_: None,
                on_worker_died=lambda *_: None,
                settings=SETTINGS,
            )
            try:
                await pool.start(part, [file], 1, {"threads": "1"}, wants_direct=False)
                met.append(("", "loaded"))
            except DinError as error:
                met.append((error.code, error.message))
            finally:
                await pool.stop()
        assert zygote.pid == pid, said
        assert open_descriptors() == descriptors
        for _ in range(100):
            if not children_of(pid):
                break
            await asyncio.sleep(0.1)
        assert children_of(pid) == [], "workers are left"
    finally:
        await zygote.stop()
    return met


def in_carver(folder: Path, given: Iterable[bytes]) -> tuple[list[list[str]], Path]:
    """The same for the carver, with the folder of its slices."""
    out = folder.parent / "out"
    out.mkdir()
    paths: list[str] = []
    for number, data in enumerate(given):
        path = folder / f"{number}.onnx"
        path.write_bytes(data)
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", CARVER, str(out)],
        input="\n".join(paths),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *met, left = map(json.loads, done.stdout.splitlines())
    assert left == 0, "descriptors or processes are left"
    assert len(met) == len(paths)
    return met, out


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    beside(made)
    return made


def test_no_hostile_model_harms_more_than_its_worker(folder: Path) -> None:
    hostile = models()
    met = dict(zip(hostile, in_workers(folder, (make() for make in hostile.values())), strict=True))
    for name, (code, words) in met.items():
        assert code != Internal.code, (name, words)
        assert code or name in {"20,000 operators", "an endless loop", "20 subgraphs deep"}, name
        assert SECRET.decode() not in words


def test_no_hostile_model_makes_the_carver_read_what_is_not_its_own(folder: Path) -> None:
    hostile = models()
    met, out = in_carver(folder, (make() for make in hostile.values()))
    for name, (code, words) in zip(hostile, met, strict=True):
        assert code != Internal.code, (name, words)
        assert not ("outside" in name or "weights in" in name) or code, name
    assert all(SECRET not in file.read_bytes() for file in out.iterdir())


def check_mutants(folder: Path, count: int, seed: int) -> None:
    met = in_workers(folder, mutants(count, seed))
    assert len(met) == count
    assert {words[:150] for code, words in met if code == Internal.code} == set()
    carved, out = in_carver(folder, mutants(count, seed))
    assert {words[:150] for code, words in carved if code == Internal.code} == set()
    assert all(SECRET not in file.read_bytes() for file in out.iterdir())


def test_200_mutants_harm_nobody(folder: Path) -> None:
    check_mutants(folder, 200, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_4000_mutants_harm_nobody(folder: Path, seed: int) -> None:
    check_mutants(folder, 400, seed)
