"""The text of DIN's systemd units. Knows no file, process or systemd: text out of facts.

Some directives would take away what confines workers and the carver, and are left out therefore:
`RestrictNamespaces=yes` and a filter of system calls without `@mount` and Landlock's calls (workers
make namespaces for users, mounts, network, queues and names), `PrivateUsers=yes` on kernels that
nest no further. `ProtectClock=` and `PrivateDevices=` would close accelerators and sensors to a
node, `MemoryDenyWriteExecute=` engines that compile kernels, `ProtectProc=` its look at workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, Literal, NamedTuple

Role = Literal["gateway", "node"]
Scope = Literal["system", "user"]
ROLES: Final[tuple[Role, ...]] = ("gateway", "node")
USER: Final = "din"
STATE_HOME: Final = "/var/lib"
MARK: Final = "# Made by `din service install`; your changes belong into a drop-in: systemctl edit"
_DIGEST: Final = re.compile(r"^# sha256 ([0-9a-f]{64})$", re.MULTILINE)
BACK_OFF_SINCE: Final = 254
"""RestartSteps= and RestartMaxDelaySec= came with this version of systemd."""
NOTIFY_RELOAD_SINCE: Final = 253
DEVICE_GROUPS: Final = ("video", "render", "i2c", "HwHiAiUser")
"""Who of this machine may open GPUs, NPUs and sensors on buses; those that exist are joined."""
SYSUSERS: Final = (
    "# Made by `din service install`.\n"
    f'u {USER} - "DIN gateway and nodes" {STATE_HOME}/din /usr/sbin/nologin\n'
)
SANDBOX_NAMESPACES: Final = "user mnt net ipc uts"
SYSTEM_CALLS: Final = (
    "@system-service @mount seccomp "
    "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
)
_STOP_S: Final[dict[Role, int]] = {"gateway": 30, "node": 90}
"""Longer than each gives what it has accepted."""
_TASKS_MAX: Final[dict[Role, int]] = {"gateway": 1024, "node": 8192}
_RESTRICTIONS: Final = f"""\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces={SANDBOX_NAMESPACES}
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter={SYSTEM_CALLS}
SystemCallErrorNumber=EPERM
"""
_SYSTEM_RESTRICTIONS: Final = """\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectHostname=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
KeyringMode=private
RemoveIPC=yes
"""
_GATEWAY_RESTRICTIONS: Final = """\
PrivateDevices=yes
ProtectClock=yes
ProtectProc=invisible
MemoryDenyWriteExecute=yes
"""


class Facts(NamedTuple):
    """What differs between machines."""

    program: str
    """Whole path of `din`."""
    version: int
    """Of systemd."""
    scope: Scope = "system"
    groups: tuple[str, ...] = ()


def unit_name(role: Role) -> str:
    """File and name of the unit."""
    return f"din-{role}.service"


def unit_text(role: Role, facts: Facts) -> str:
    """The whole unit, with the digest by which `is_edited` knows it again."""
    body = "\n".join((_unit(role, facts), _service(role, facts), _install(facts)))
    user = "--user " if facts.scope == "user" else ""
    return f"{MARK} {user}{unit_name(role)}\n# sha256 {_digest(body)}\n{body}"


def is_ours(text: str) -> bool:
    """Whether a unit was made here."""
    return text.startswith(MARK)


def is_edited(text: str) -> bool:
    """Whether somebody changed a unit that was made here."""
    found = _DIGEST.search(text)
    if found is None:
        return True
    return _digest(text[found.end() + 1 :]) != found[1]


def _digest(body: str) -> str:
    return sha256(body.encode()).hexdigest()


def _unit(role: Role, facts: Facts) -> str:
    after = ["network-online.target", "time-sync.target"] if facts.scope == "system" else []
    after += [unit_name("gateway")] if role == "node" else []
    lines = ["[Unit]", f"Description=DIN {role}"]
    lines += ["Wants=network-online.target"] if facts.scope == "system" else []
    lines += [f"After={' '.join(after)}"] if after else []
    # With the pauses below it is tried again for ever; only what ends at once, by hand or by
    # mistake, meets this.
    return _text([*lines, "StartLimitIntervalSec=60", "StartLimitBurst=10"])


def _service(role: Role, facts: Facts) -> str:
    is_reload_known = facts.version >= NOTIFY_RELOAD_SINCE
    lines = ["[Service]", f"Type={'notify-reload' if is_reload_known else 'notify'}"]
    lines += ["NotifyAccess=main", f"ExecStart={_quoted(facts.program)} {role} start"]
    lines += [] if is_reload_known else ["ExecReload=/bin/kill -HUP $MAINPID"]
    lines += [
        "Restart=on-failure",
        # Settings that are wrong stay wrong until somebody mends them.
        "RestartPreventExitStatus=2",
        *_pauses(facts.version),
        "TimeoutStartSec=180",
        f"TimeoutStopSec={_STOP_S[role]}",
        "WatchdogSec=30",
        # Workers end when their agent lets them, with the answers that they owe.
        "KillMode=mixed",
        "OOMPolicy=continue",
        "LimitNOFILE=65536",
        "LimitCORE=0",
        f"TasksMax={_TASKS_MAX[role]}",
        "UMask=0077",
    ]
    if facts.scope == "system":
        lines += _system_lines(role, facts.groups)
    text = _text(lines) + _RESTRICTIONS
    if facts.scope == "system":
        text += _SYSTEM_RESTRICTIONS + (_GATEWAY_RESTRICTIONS if role == "gateway" else "")
    return text


def _pauses(version: int) -> Iterable[str]:
    if version >= BACK_OFF_SINCE:
        return ("RestartSec=1", "RestartSteps=8", "RestartMaxDelaySec=60")
    return ("RestartSec=10",)


def _system_lines(role: Role, groups: tuple[str, ...]) -> list[str]:
    lines = [f"User={USER}", f"Group={USER}"]
    if role == "node" and groups:
        lines.append(f"SupplementaryGroups={' '.join(groups)}")
    return [
        *lines,
        "StateDirectory=din",
        "StateDirectoryMode=0700",
        "ConfigurationDirectory=din",
        f"RuntimeDirectory=din-{role}",
        "RuntimeDirectoryMode=0700",
        # Both programs of this machine are one user's, and find each other below it.
        f"Environment=XDG_STATE_HOME={STATE_HOME}",
        f"Environment=XDG_RUNTIME_DIR=/run/din-{role}",
    ]


def _install(facts: Facts) -> str:
    target = "multi-user.target" if facts.scope == "system" else "default.target"
    return _text(["[Install]", f"WantedBy={target}"])


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{each}\n" for each in lines)


def _quoted(path: str) -> str:
    """A path as systemd reads it: specifiers and variables doubled, spaces in quotes."""
    plain = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return plain if re.fullmatch(r"[\w./@:+%$-]+", plain) else f'"{plain}"'
