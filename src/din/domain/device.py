"""The hardware identity string of a node: architecture, accelerator, toolkit."""

from __future__ import annotations

from msgspec import Struct

from din.errors import UsageError


class DeviceType(Struct, frozen=True):
    """Prints and parses as `aarch64-ascend310p-cann6.3`; compared exactly, case included."""

    arch: str
    accelerator: str
    toolkit: str

    def __str__(self) -> str:
        return "-".join(part for part in (self.arch, self.accelerator, self.toolkit) if part)

    def differences(self, other: DeviceType) -> tuple[str, ...]:
        """Names of the parts in which `other` differs, each with both values."""
        pairs = (
            ("arch", self.arch, other.arch),
            ("accelerator", self.accelerator, other.accelerator),
            ("toolkit", self.toolkit, other.toolkit),
        )
        return tuple(
            f"{part} {mine!r} != {theirs!r}" for part, mine, theirs in pairs if mine != theirs
        )


def parse_device_type(text: str) -> DeviceType:
    """Parse `arch[-accelerator[-toolkit]]`. Raises UsageError for empty parts or over 64 chars."""
    parts = text.split("-", 2)
    if not text or len(text) > 64 or not all(parts) or not text.isprintable() or " " in text:
        raise UsageError(
            f"device type {text!r} is not of the form arch-accelerator-toolkit",
            hint="for example x86_64-cuda11.8-trt8.6 or aarch64-ascend310p-cann6.3",
        )
    return DeviceType(*parts, *([""] * (3 - len(parts))))
