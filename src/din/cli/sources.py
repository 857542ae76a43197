"""Where settings come from: flags > environment (`DIN_*`) > user's file > system's > defaults.

A file holds keys at its top, which apply to both programs, and the sections `gateway:` and `node:`
for one:

    cluster: line-4              # both
    gateway: {port: 8000}

`host`, `port` and `state_dir` at the top are the gateway's. The environment works alike:
DIN_CLUSTER for both, DIN_GATEWAY_PORT and DIN_NODE_PORT for one. An unknown key in a file is an
error with a suggestion, an unknown variable a warning.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple, cast

import msgspec

from din.cli.knobs import (
    LISTS,
    Origin,
    build,
    defaults_of,
)
from din.client.credentials import KEY_VARIABLE
from din.config import (
    GIVEN_VARIABLE,
    HANDOVER_VARIABLE,
    SECTIONS,
    GatewayConfig,
    NodeConfig,
)
from din.config_forms import Section, default_node_name
from din.errors import UsageError

SYSTEM_FILE: Final = Path("/etc/din/config.yaml")
FILE_BYTES_MAX: Final = 1024 * 1024
DEPTH_MAX: Final = 32
"""Levels of lists and mappings in a file; settings need three."""
GATEWAY_ONLY_AT_TOP: Final = frozenset({"host", "port", "state_dir"})
"""Keys of both programs whose value at the top of a file cannot be meant for both."""


class Loaded(NamedTuple):
    """Settings of one section, with the origin of each value."""

    values: dict[str, Origin]
    warnings: tuple[str, ...]


def user_file(environment: Mapping[str, str]) -> Path:
    """The user's own configuration file, by the XDG rule."""
    home = environment.get("XDG_CONFIG_HOME") or f"{environment.get('HOME', '~')}/.config"
    return Path(home).expanduser() / "din" / "config.yaml"


def default_state_dir(environment: Mapping[str, str]) -> Path:
    """$XDG_STATE_HOME/din or ~/.local/state/din; for root as well."""
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '~')}/.local/state"
    return Path(home).expanduser() / "din"


def load_gateway(flags: Mapping[str, object], environment: Mapping[str, str]) -> GatewayConfig:
    """Settings of a gateway with its paths filled in. Raises UsageError."""
    config = build(GatewayConfig, collect("gateway", flags, environment).values)
    if config.state_dir:
        return msgspec.structs.replace(config, state_dir=_absolute(config.state_dir))
    return msgspec.structs.replace(config, state_dir=str(default_state_dir(environment)))


def load_node(flags: Mapping[str, object], environment: Mapping[str, str]) -> NodeConfig:
    """Settings of a node with name and paths filled in. Raises UsageError."""
    config = build(NodeConfig, collect("node", flags, environment).values)
    name = config.name or default_node_name(os.uname().nodename)
    state_dir = config.state_dir
    if not state_dir:
        state_dir = str(Path(load_gateway({}, environment).state_dir) / "nodes" / name)
    return msgspec.structs.replace(config, name=name, state_dir=_absolute(state_dir))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def collect(
    section: Section, flags: Mapping[str, object], environment: Mapping[str, str]
) -> Loaded:
    """Value and origin of every key of a section; flags that are None count as not given."""
    fields = defaults_of(section)
    values = {key: Origin(default, "default") for key, default in fields.items()}
    for path in (SYSTEM_FILE, user_file(environment)):
        values.update(read_file(section, path))
    from_environment, warnings = _environment_values(section, environment)
    values.update(from_environment)
    for key, value in flags.items():
        if value is not None:
            values[key] = Origin(value, f"flag --{key.replace('_', '-')}")
    return Loaded(values, warnings)


def read_file(section: Section, path: Path) -> dict[str, Origin]:
    """Values of one section in a YAML file; none where the file is absent. A key with nothing after
    it, or null where that means nothing, is as if left out. Raises UsageError."""
    content = _parse_file(path)
    values: dict[str, Origin] = {}
    for key, value in content.items():
        if key in SECTIONS:
            continue
        owners = [each for each in SECTIONS if key in SECTIONS[each].__struct_fields__]
        if not owners:
            names = {name for each in SECTIONS.values() for name in each.__struct_fields__}
            raise _unknown(path, key, names)
        if section in owners and (section == "gateway" or key not in GATEWAY_ONLY_AT_TOP):
            values[key] = Origin(value, str(path))
    inner = content.get(section)
    if section == "node" and not isinstance(content.get("gateway"), dict) and "gateway" in content:
        values["gateway"] = Origin(content["gateway"], str(path))
    if isinstance(inner, dict):
        for key, value in cast("dict[str, object]", inner).items():
            if key not in SECTIONS[section].__struct_fields__:
                raise _unknown(path, f"{section}.{key}", SECTIONS[section].__struct_fields__)
            values[key] = Origin(value, f"{path} ({section})")
    fresh = defaults_of(section)
    return {
        key: origin
        for key, origin in values.items()
        if origin.value is not None or fresh[key] is None
    }


def _parse_file(path: Path) -> dict[str, object]:
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UsageError(
            f"configuration file {path} cannot be read: {error.strerror}",
            hint=f"check its permissions: ls -l {path}",
        ) from None
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(
            f"{path} has {len(raw)} bytes; {FILE_BYTES_MAX} is the limit",
            hint="settings are a few lines of `key: value`",
        )
    content = _parse_yaml(raw, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no keys", hint="write `key: value` lines")
    return {str(key): value for key, value in cast("dict[object, object]", content).items()}


def _parse_yaml(raw: bytes, path: Path) -> object:
    """Without anchors, with which a few lines mean gigabytes, and without great depth."""
    import yaml

    try:
        depth = 0
        for event in yaml.parse(raw, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise UsageError(
                    f"{path}:{line}: *{event.anchor:.80} stands for what was written before",
                    hint="write the value itself: anchors are not taken here",
                )
            if depth > DEPTH_MAX:
                raise UsageError(
                    f"{path}:{event.start_mark.line + 1}: nested over {DEPTH_MAX} levels deep",
                    hint="settings are a few lines of `key: value`",
                )
        return yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        # Values that only look like dates, numbers or truth fail in the library's own conversion.
        reason = " ".join(str(error).split())[:200]
        raise UsageError(
            f"configuration file {path} is not YAML: {reason}",
            hint="write `key: value` lines, and text that looks like something else in quotes",
        ) from None


def _unknown(path: Path, key: str, known: Iterable[str]) -> UsageError:
    close = get_close_matches(key.rpartition(".")[2], sorted(known), n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`din config show` lists all keys"
    return UsageError(f"{path}: unknown key {key!r:.200}", hint=hint)


def _environment_values(
    section: Section, environment: Mapping[str, str]
) -> tuple[dict[str, Origin], tuple[str, ...]]:
    values: dict[str, Origin] = {}
    known = {HANDOVER_VARIABLE, GIVEN_VARIABLE, "DIN_SKIP_CONSOLE", KEY_VARIABLE}
    for each in SECTIONS:
        for key in SECTIONS[each].__struct_fields__:
            own, shared = f"DIN_{each}_{key}".upper(), f"DIN_{key}".upper()
            is_shared = each == "gateway" or key not in GATEWAY_ONLY_AT_TOP
            names = (shared, own) if is_shared else (own,)
            known.update(names)
            if each != section:
                continue
            for name in names:
                if environment.get(name):
                    values[key] = Origin(_from_text(key, environment[name]), name)
    strange = sorted(each for each in environment if each.startswith("DIN_") and each not in known)
    return values, tuple(_warn(name, known) for name in strange)


def _warn(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    suggestion = f"; did you mean {close[0]}?" if close else ""
    return f"environment variable {name} means nothing to DIN{suggestion}"


def _from_text(key: str, text: str) -> object:
    if key in LISTS:
        return [each for each in text.split(",") if each]
    if key == "labels":
        parts = (each.partition("=") for each in text.split(",") if each)
        return {name: value for name, _, value in parts}
    return text
