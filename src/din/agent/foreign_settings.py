"""What a node is told of the servers behind it: checked settings, addresses, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from din.config import NodeConfig, is_loopback
from din.config_forms import ContainerSetting, ForeignSetting
from din.domain.foreign import URL_MAX
from din.errors import Unavailable, UsageError
from din.foreign.metadata import is_name

TOKEN_BYTES_MAX: Final = 8192
OWN_MOUNTS: Final = ("", "/proc", "/dev", "/sys", "/tmp", "/run", "/dev/shm")
"""Where every container has something already."""


class Address(NamedTuple):
    """A URL in parts."""

    host: str
    port: int
    prefix: str

    @property
    def authority(self) -> str:
        """For the Host header."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def settings_of(written: Sequence[ForeignSetting | str]) -> tuple[ForeignSetting, ...]:
    """The settings, checked as a whole. Raises UsageError."""
    found = tuple(
        ForeignSetting(url=each.rstrip("/"))
        if isinstance(each, str)
        else replace(each, url=each.url.rstrip("/"))
        for each in written
    )
    for each in found:
        address_of(each.url)
        for name in each.models:
            if not is_name(name):
                raise UsageError(f"foreign server {each.url} is to offer a model {name!r:.80}")
        if each.token_file and each.token_env:
            raise UsageError(
                f"foreign server {each.url} has a token_file and a token_env",
                hint="name the token in one place",
            )
    urls = [each.url for each in found]
    for url in urls:
        if urls.count(url) > 1:
            raise UsageError(f"foreign server {url} is named twice", hint="name it once")
    return found


def check_containers(found: Sequence[ForeignSetting], config: NodeConfig) -> None:
    """Raises UsageError for a server that the node is to start, and cannot as it is told."""
    for each in found:
        if each.container is None:
            continue
        if not config.runner:
            raise UsageError(
                f"foreign server {each.url} has a container, and no runner is to start it",
                hint="din node start --runner crun (or runc)",
            )
        address = address_of(each.url)
        if not is_loopback(address.host) or not urlsplit(each.url).port:
            raise UsageError(
                f"foreign server {each.url} has a container, which is reached on this machine only",
                hint="write its URL with an address and a port of this machine: "
                "http://127.0.0.1:8000",
            )
        _check_paths(each.url, each.container)
    for device in config.runner_device:
        if ".." in device or not device.startswith("/dev/"):
            raise UsageError(
                f"runner_device {device!r:.80} is no device", hint="--runner-device /dev/nvidia0"
            )


def _check_paths(url: str, container: ContainerSetting) -> None:
    for key, path in (("image", container.image), *container.mounts.items()):
        if not path.startswith("/") or ".." in path.split("/"):
            raise UsageError(
                f"container of {url}: {key} is {path!r:.80}, which is no full path",
                hint="write it from / on",
            )
    for source, target in container.mounts.items():
        if not source.startswith("/") or target.rstrip("/") in OWN_MOUNTS:
            raise UsageError(
                f"container of {url} mounts {source!r:.80} at {target!r:.80}",
                hint="mount a full path of this machine, for example /srv/models: /models",
            )
    for name, value in container.environment.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(
                f"container of {url} has an environment variable {name!r:.80}",
                hint="write environment as NAME: value",
            )


def address_of(url: str) -> Address:
    """A server's URL in parts. Raises UsageError."""
    hint = "write it as http://127.0.0.1:8090"
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise UsageError(f"foreign server {url!r:.80} is no URL: {error}", hint=hint) from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the URL of a foreign server at {parts.hostname} holds a user or password",
            hint="put a token into a file and name it: token_file",
        )
    if parts.scheme == "https":
        raise UsageError(
            f"foreign server {url!r:.80} speaks TLS, which DIN does not speak to it",
            hint="let the node run on the server's machine, and use its plain port on 127.0.0.1",
        )
    is_plain = parts.scheme == "http" and bool(parts.hostname)
    if not is_plain or parts.query or parts.fragment or len(url) > URL_MAX:
        raise UsageError(f"foreign server {url!r:.80} is no HTTP URL", hint=hint)
    return Address(parts.hostname or "", port, parts.path.rstrip("/"))


def token_of(setting: ForeignSetting, environment: Mapping[str, str]) -> str:
    """What the server wants to see; empty = nothing. Raises Unavailable."""
    if setting.token_env:
        token = environment.get(setting.token_env, "").strip()
        if not token:
            raise Unavailable(f"environment variable {setting.token_env} holds no token")
        return _checked(token, f"environment variable {setting.token_env}")
    if not setting.token_file:
        return ""
    try:
        with Path(setting.token_file).open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise Unavailable(f"token_file {setting.token_file}: {reason}") from None
    return _checked(token, f"token_file {setting.token_file}")


def _checked(token: str, where: str) -> str:
    """It goes into a header, and is never shown. Raises Unavailable."""
    if not token or not token.isprintable() or " " in token:
        raise Unavailable(f"{where} holds no token: one word is expected")
    return token
