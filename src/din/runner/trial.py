"""Whether a runtime can start a container here, by starting one: of this machine's own files."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from din.config_forms import ContainerSetting
from din.errors import Unavailable
from din.runner.bundle import bundle_of
from din.runner.image import RunConfig
from din.runner.runtime import Runtime, part_mounts, this_host
from din.wire.runner import Runner

TRIAL_S_MAX: Final = 15.0
OWN: Final = ("usr", "bin", "lib", "lib64", "sbin")


def root_of_this_machine(root: Path) -> dict[str, str]:
    """Make an empty root in which this machine's programs can be mounted; the mounts."""
    root.mkdir(mode=0o755)
    mounts: dict[str, str] = {}
    for name in OWN:
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(path.readlink())
        elif path.is_dir():
            mounts[str(path)] = str(path)
    return mounts


def try_runtime(runner: Runner) -> str:
    """What was seen. Raises Unavailable with the reason when no container can be started."""
    part_mounts(runner)
    with tempfile.TemporaryDirectory(prefix="din-") as made:
        folder = Path(made)
        runtime = Runtime(runner, folder / "notes")
        mounts = root_of_this_machine(folder / "root")
        setting = ContainerSetting(
            image=str(folder / "root"), command=("/bin/true",), mounts=mounts, memory_mib=64
        )
        host = this_host()
        container_id = f"din-try-{folder.name}"
        document = bundle_of(setting, RunConfig(), str(folder / "root"), container_id, host)
        (folder / "config.json").write_bytes(msgspec.json.encode(document))
        words = runtime.command("run", "--bundle", made, container_id)
        try:
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=runtime.environment(),
                timeout=TRIAL_S_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{runtime.program} started nothing: {error!s:.200}") from error
        finally:
            runtime.remove(container_id)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-400:]
            raise Unavailable(
                f"{runner} {runtime.version} starts no container here: {said or done.returncode}",
                hint=f"python -m din.runner --try {runner}",
            )
    limit = "memory by cgroups" if host.has_cgroups else "memory by limits of each process"
    who = "an ordinary user" if host.is_rootless else "root"
    return f"{runner} {runtime.version} starts containers as {who}, {limit}"
