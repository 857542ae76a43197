"""The config.json of a container, as the OCI runtime specification has it.

The server gets nothing but its files, read-only, what is mounted for it, memory for temporary
files, and a network of its own with nothing but 127.0.0.1 in it. Pure: what is on the machine
comes in as values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from din.config_forms import ContainerSetting
from din.errors import UsageError
from din.runner.image import RunConfig, numeric_user

Json = dict[str, Any]

OCI_VERSION: Final = "1.0.2"
MIB: Final = 1024 * 1024
PIDS_MAX: Final = 4096
FILES_MAX: Final = 65_536
TMP_MIB_MAX: Final = 1024
NOBODY: Final = (65534, 65534)
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES: Final = ("pid", "mount", "ipc", "uts", "network")
NEW_NAMESPACES: Final = (
    0x00000080, 0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
"""Flags of clone(2)."""
EPERM, ENOSYS = 1, 38
REFUSED: Final = (
    *("acct", "add_key", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module"),
    *("fanotify_init", "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module"),
    *("io_uring_enter", "io_uring_register", "io_uring_setup", "ioperm", "iopl", "kcmp"),
    *("kexec_file_load", "kexec_load", "keyctl", "lookup_dcookie", "mount", "mount_setattr"),
    *("move_mount", "name_to_handle_at", "nfsservctl", "open_by_handle_at", "open_tree"),
    *("perf_event_open", "personality", "pidfd_getfd", "pivot_root", "process_vm_readv"),
    *("process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot", "request_key"),
    *("setdomainname", "sethostname", "setns", "settimeofday", "swapoff", "swapon", "syslog"),
    *("umount", "umount2", "unshare", "userfaultfd", "uselib", "vhangup", "vm86", "vm86old"),
)
MASKED: Final = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi"),
    *("/proc/kallsyms", "/sys/firmware"),
)
READ_ONLY: Final = (*("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),)
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


class Device(Struct, frozen=True):
    """A device of this machine."""

    path: str
    kind: str
    """`c` or `b`."""
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


class Host(Struct, frozen=True):
    """What of this machine a bundle depends on."""

    machine: str
    uid: int
    gid: int
    has_cgroups: bool
    files_max: int = FILES_MAX
    """That a process of ours may allow one of its own to open."""

    @property
    def is_rootless(self) -> bool:
        """Whether an ordinary user starts the container."""
        return self.uid != 0


def bundle_of(
    setting: ContainerSetting,
    image: RunConfig,
    root: str,
    container_id: str,
    host: Host,
    devices: Sequence[Device] = (),
) -> Json:
    """The whole document. Raises UsageError when nobody says which program runs."""
    own_mounts = [_bind(source, target) for source, target in setting.mounts.items()]
    if host.is_rootless:
        own_mounts += [_bind(each.path, each.path, "rw") for each in devices]
    return {
        "ociVersion": OCI_VERSION,
        "hostname": "din",
        "root": {"path": root, "readonly": True},
        "process": _process(setting, image, host, devices),
        "mounts": [*_mounts(setting.memory_mib), *own_mounts],
        "linux": _linux(setting, container_id, host, devices),
    }


def words_of(setting: ContainerSetting, image: RunConfig) -> list[str]:
    """Program and words. Raises UsageError."""
    words = [*setting.command] or [*(image.entrypoint or ()), *(image.cmd or ())]
    if not words or not words[0]:
        raise UsageError(
            f"nothing says which program of image {setting.image} is to run",
            hint="name it in the container's settings: command",
        )
    return words


def _process(
    setting: ContainerSetting, image: RunConfig, host: Host, devices: Sequence[Device]
) -> Json:
    wanted = setting.user.split(":") if setting.user else ()
    asked = (int(wanted[0]), int(wanted[1])) if wanted else numeric_user(image) or NOBODY
    # An ordinary user has one id there, which is root of nothing but its own namespace.
    uid, gid = (0, 0) if host.is_rootless else asked
    user: Json = {"uid": uid, "gid": gid}
    groups = sorted({each.gid for each in devices if each.gid and each.mode & 0o060})
    if groups and not host.is_rootless:
        user["additionalGids"] = groups
    limits = {"RLIMIT_NOFILE": min(host.files_max, FILES_MAX), "RLIMIT_CORE": 0}
    if not host.has_cgroups:
        limits["RLIMIT_DATA"] = setting.memory_mib * MIB
    return {
        "terminal": False,
        "user": user,
        "args": words_of(setting, image),
        "env": _environment(setting.environment, image.env or ()),
        "cwd": image.working_dir or "/",
        "noNewPrivileges": True,
        "capabilities": {
            kind: [] for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")
        },
        "rlimits": [{"type": name, "soft": value, "hard": value} for name, value in limits.items()],
    }


def _environment(own: Mapping[str, str], of_image: Sequence[str]) -> list[str]:
    found = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8"}
    for each in of_image:
        name, sign, value = each.partition("=")
        if sign:
            found[name] = value
    found.update(own)
    return [f"{name}={value}" for name, value in found.items()]


def _mounts(memory_mib: int) -> list[Json]:
    size = f"size={min(memory_mib // 2, TMP_MIB_MAX)}m"
    plain = ["nosuid", "nodev"]
    return [
        _mount("/proc", "proc", [*plain, "noexec"]),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=64k"]),
        _mount("/dev/shm", "tmpfs", [*plain, "noexec", "mode=1777", size]),
        _mount("/tmp", "tmpfs", [*plain, "mode=1777", size]),
        _mount("/run", "tmpfs", [*plain, "mode=1777", size]),
        _mount("/sys", "sysfs", [*plain, "noexec", "ro"]),
    ]


def _mount(target: str, kind: str, options: list[str]) -> Json:
    return {"destination": target, "type": kind, "source": kind, "options": options}


def _bind(source: str, target: str, access: str = "ro") -> Json:
    kept = ["nodev"] if access == "ro" else []
    options = ["rbind", "rprivate", access, "nosuid", *kept]
    return {"destination": target, "type": "bind", "source": source, "options": options}


def _linux(
    setting: ContainerSetting, container_id: str, host: Host, devices: Sequence[Device]
) -> Json:
    namespaces = [{"type": each} for each in NAMESPACES]
    found: Json = {
        "namespaces": namespaces,
        "maskedPaths": list(MASKED),
        "readonlyPaths": list(READ_ONLY),
        "seccomp": seccomp_of(host.machine),
    }
    if host.is_rootless:
        namespaces.append({"type": "user"})
        found["uidMappings"] = [{"containerID": 0, "hostID": host.uid, "size": 1}]
        found["gidMappings"] = [{"containerID": 0, "hostID": host.gid, "size": 1}]
    else:
        found["devices"] = [
            {
                "path": each.path, "type": each.kind, "major": each.major, "minor": each.minor,
                "fileMode": each.mode, "uid": each.uid, "gid": each.gid,
            }
            for each in devices
        ]  # fmt: skip
    if host.has_cgroups:
        nbytes = setting.memory_mib * MIB
        allowed = [
            {"allow": True, "type": each.kind, "major": each.major, "minor": each.minor,
             "access": "rw"}
            for each in devices
        ]  # fmt: skip
        found["cgroupsPath"] = f"/din/{container_id}"
        found["resources"] = {
            "memory": {"limit": nbytes},
            "pids": {"limit": PIDS_MAX},
            "devices": [{"allow": False, "access": "rwm"}, *allowed],
        }
    return found


def seccomp_of(machine: str) -> Json:
    """Calls that no server needs and kernels were broken by; new namespaces among them."""
    flags = [
        {
            "names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM,
            "args": [{"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}],
        }
        for flag in NEW_NAMESPACES
    ]  # fmt: skip
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": [ARCHITECTURES[machine]] if machine in ARCHITECTURES else [],
        "syscalls": [
            {"names": list(REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": EPERM},
            # Its flags lie in memory, where a filter does not see them: libraries use clone then.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS},
            *flags,
        ],
    }
