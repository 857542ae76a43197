"""Calls the carver, a process of its own: model bytes are untrusted, `onnx` never enters here."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from din.artifacts.files import ArtifactFolder
from din.domain.model import CarveAnswer, CarveRequest
from din.domain.views import ErrorView
from din.errors import DeadlineExceeded, DinError, Internal, error_of_code

CARVE_SECONDS_MAX: Final = 300
CARVERS_MAX: Final = 2
"""At once: each may hold a few copies of one model in memory."""


class Carving:
    """Runs carvers and moves what they made into the artifact folder."""

    def __init__(self, artifacts: ArtifactFolder, scratch: Path) -> None:
        self._artifacts = artifacts
        self._scratch = scratch
        self._places = asyncio.Semaphore(CARVERS_MAX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    async def carve(self, request: CarveRequest) -> CarveAnswer:
        """Carve one model; `output_path` of the request is replaced by a folder of our own.

        Raises the carver's DinError, DeadlineExceeded after CARVE_SECONDS_MAX, Internal when the
        carver died without an answer.
        """
        async with self._places:
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            try:
                self._artifacts.check_room(os.stat(request.model_path).st_size)  # noqa: PTH116
                asked = msgspec.structs.replace(request, output_path=str(folder))
                answer = await _call(asked)
            except DinError as error:
                # The store's path means nothing to who sent the file.
                shown = error.message.replace(str(request.model_path), "the model file")
                raise type(error)(shown, hint=error.hint) from None
            else:
                for part in answer.slices:
                    for artifact in part.artifacts:
                        made = folder / artifact.sha256
                        if made.exists():
                            self._artifacts.adopt(made, artifact.sha256)
                return answer
            finally:
                shutil.rmtree(folder, ignore_errors=True)


async def _call(request: CarveRequest) -> CarveAnswer:
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "din.carver",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(CARVE_SECONDS_MAX):
            said, complaint = await child.communicate(msgspec.json.encode(request))
    except TimeoutError:
        raise DeadlineExceeded(
            f"carving took over {CARVE_SECONDS_MAX} s and was stopped",
            hint="cut the model into fewer slices, or simplify its graph first",
        ) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return _read(child.returncode, said, complaint)


def _read(exit_code: int | None, said: bytes, complaint: bytes) -> CarveAnswer:
    try:
        if exit_code == 0:
            return msgspec.json.decode(said, type=CarveAnswer)
        error = msgspec.json.decode(said, type=ErrorView)
    except msgspec.DecodeError:
        tail = complaint.decode(errors="replace").strip().splitlines()[-1:]
        raise Internal(
            f"the carver ended with code {exit_code} and said {said[:80]!r}; {''.join(tail)}",
            hint="code -9 is the memory limit: register a smaller model or raise it",
        ) from None
    raise error_of_code(error.code, error.message, error.hint)
