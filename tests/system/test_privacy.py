"""What our processes hide from others, and how state directories are closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from din.errors import Denied
from din.system.identity import claim_directory
from din.system.privacy import engine_environment, make_private, narrow, plain_environment

LOOK = """
import ctypes, os, resource, sys
from pathlib import Path
from din.system.privacy import hide
def dumpable(): return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
assert dumpable() == 1, "the test needs a process that starts dumpable"
hide()
assert dumpable() == 0
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
file = Path(sys.argv[1], "made")
file.write_text("x")
assert file.stat().st_mode & 0o777 == 0o600
assert os.listdir("/proc/self/fd")
memory = os.memfd_create("x")
assert Path(f"/proc/self/fd/{memory}").open("rb").read() == b""
pid = os.fork()
if pid == 0:
    os._exit(dumpable())
assert os.waitpid(pid, 0)[1] == 0, "a fork is as hidden"
"""


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_hidden_process_leaves_no_core_and_shows_nobody_its_memory(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LOOK, str(tmp_path)], check=True)


def test_directories_are_made_for_their_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a") == mode_of(tmp_path / "a" / "b") == 0o700
    make_private(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    "entries", [(), ("log", "run", "nodes"), ("identity.json", "store.sqlite")]
)
def test_a_state_directory_that_was_open_is_closed_and_that_is_said(
    tmp_path: Path, entries: tuple[str, ...]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for entry in entries:
        (state / entry).write_text("{}")
    state.chmod(0o755)
    told = narrow(state)
    assert "mode 0755" in told
    assert mode_of(state) == 0o700
    assert narrow(state) == ""


def test_a_directory_with_files_of_others_is_left_alone_and_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(Denied) as refused:
        claim_directory(tmp_path, "agent")
    assert "0755" in refused.value.message
    assert f"chmod 700 {tmp_path}" in refused.value.hint
    assert mode_of(tmp_path) == 0o755
    assert not (tmp_path / "lock").exists()


def test_a_directory_for_everybody_is_never_closed(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{}")
    tmp_path.chmod(0o1777)
    with pytest.raises(Denied):
        narrow(tmp_path)
    assert mode_of(tmp_path) == 0o1777


def test_the_owner_of_a_claim_is_told_what_was_open(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o750)
    with claim_directory(state, "agent") as claim:
        (warning,) = claim.next_identity(Path("/nowhere")).warnings
    assert "has mode 0700 now" in warning


def test_secrets_in_variables_are_not_handed_on_and_what_a_program_needs_is() -> None:
    needed = {"PATH": "/bin", "HOME": "/home/me", "LC_ALL": "C", "PYTHONPATH": "/lib"}
    secrets = {"AWS_SECRET_ACCESS_KEY": "s", "DIN_API_KEY": "s", "DIN_CONFIG_JSON": "{}"}
    assert plain_environment({**secrets, **needed}) == needed


def test_engines_are_told_which_devices_they_may_use_and_no_secret_of_a_maker() -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "ASCEND_RT_VISIBLE_DEVICES": "0", "PATH": "/bin"}
    secrets = {"HAILO_DEVELOPER_TOKEN": "s", "CUDA_LICENCE_KEY": "s", "NEURON_RT_KEY": "s"}
    assert engine_environment({**chosen, **secrets}) == chosen
    assert plain_environment(chosen) == {"PATH": "/bin"}
