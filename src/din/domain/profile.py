"""What was measured of a model on one class of devices, and what people see of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from din.domain.encoding import RewriteCheck
from din.domain.node import NodeProfile
from din.domain.probe import ProfileReport, VerifyReport

TYPICAL = "typical"
"""The bucket of what was made up at typical sizes."""


class DeviceClass(Struct, frozen=True, order=True):
    """Devices of which one may stand for the others: what decides how fast a worker computes."""

    device_type: str
    cpu_model: str
    cpu_isa: tuple[str, ...]
    cpu_cores: float
    engine: str
    """Of the backend that was measured, with its version."""

    def __str__(self) -> str:
        return f"{self.device_type}, {self.cpu_model or 'unknown CPU'}, {self.cpu_cores:g} cores"


def device_class_of(profile: NodeProfile, backend: str) -> DeviceClass:
    """The class of a node."""
    version = profile.versions.get(backend, "")
    return DeviceClass(
        device_type=profile.device_type,
        cpu_model=profile.cpu_model,
        cpu_isa=tuple(sorted(profile.cpu_isa)),
        cpu_cores=profile.cpu_cores,
        engine=f"{backend} {version}".strip(),
    )


def bucket_of(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The name of these input shapes: `images=1x3x640x640`, or `typical` for none."""
    named = (f"{name}={'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))
    return ",".join(named) or TYPICAL


class Profile(Struct, frozen=True, kw_only=True):
    """One report with what it is of; as the store keeps it."""

    source_sha256: str
    device: DeviceClass
    bucket: str
    backend_options: dict[str, str] = {}
    node: str
    """The name of the node that measured."""
    measured_at: str
    """Wall clock, ISO 8601."""
    report: ProfileReport

    def ms_by_operator(self) -> dict[str, float]:
        """Milliseconds by the operator's name; together they are `report.whole_ms`."""
        return {each.name: each.ms for each in self.report.operators}

    def nbytes_by_value(self) -> dict[str, int]:
        """Bytes of each value whose size is known."""
        return {
            value.name: value.nbytes
            for each in self.report.operators
            for value in each.outputs
            if value.nbytes is not None
        }


class GivenTensor(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model input that comes with an order; `data` is base64 in JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


class ProfileModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/models/{model}/profile."""

    node: str | None = None
    """By name or id; None = one node of each class of devices."""
    inputs: tuple[GivenTensor, ...] = ()
    shapes: dict[str, tuple[int, ...]] = {}
    rounds: Annotated[int, Meta(ge=1, le=100)] = 7
    is_fresh: bool = False
    """Measure again what is stored."""
    timeout_ms: Annotated[int, Meta(ge=1_000, le=300_000)] = 120_000


class ProfileItem(Struct, frozen=True, kw_only=True):
    """One class of devices in an answer."""

    profile: Profile | None = None
    is_stored: bool = False
    """It was measured before."""
    live_factor: float | None = None
    """By what the slices that run on this class take longer than profiles say; None = not known."""
    device: DeviceClass
    node: str
    error: str = ""
    """Why there is no profile."""
    error_code: str = ""


class ProfileView(Struct, frozen=True, kw_only=True):
    """Answer to ProfileModel."""

    schema: str = "din.profile/1"
    model_id: str
    version: str
    items: tuple[ProfileItem, ...]


class VerifyModel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /api/v1/models/{model}/verify."""

    node: str | None = None
    """By name or id; None = any that can hold the whole."""
    inputs: tuple[GivenTensor, ...] = ()
    shapes: dict[str, tuple[int, ...]] = {}
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    timeout_ms: Annotated[int, Meta(ge=1_000, le=300_000)] = 120_000


class Verification(Struct, frozen=True, kw_only=True):
    """Whether the slices compute what the whole does; kept with the version."""

    state: str
    """`right`, `wrong`, `whole` (one slice: nothing to compare) or `unknown`."""
    summary: str
    """One sentence."""
    node: str = ""
    checked_at: str = ""
    report: VerifyReport | None = None


class VerifyView(Struct, frozen=True, kw_only=True):
    """Answer to VerifyModel."""

    schema: str = "din.verification/1"
    model_id: str
    version: str
    verification: Verification
    rewrite: RewriteCheck | None = None
    """Measured anew, on the same inputs."""
