"""What a node knows of the cluster that it has joined, and the child that joins and renews.

`cluster.json` in the node's `trust` folder is written last at a join: with it the node has joined.
The child is `python -m din.enrol`: one JSON order on standard input, one JSON answer on standard
output, so that no secret is in an argument or in the environment.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from din.domain.enrolment import Enrolled, Membership
from din.domain.malformed import MALFORMED
from din.errors import DinError, Internal, Unavailable, error_of_code
from din.system.identity import disk_error, write_together

FOLDER: Final = "trust"
FILE: Final = "cluster.json"
FILE_BYTES_MAX: Final = 16 * 1024
GATEWAYS_MAX: Final = 16
CHILD_S: Final = 60.0
"""What the child may take for all gateways together."""

Step = Literal["join", "renew"]


class EnrolOrder(Struct, frozen=True, kw_only=True):
    """What the child reads."""

    folder: str
    gateways: tuple[str, ...]
    token: str = ""
    node_id: str = ""
    name: str = ""

    def __repr__(self) -> str:
        return f"EnrolOrder(folder={self.folder!r})"


class EnrolAnswer(Struct, frozen=True, kw_only=True):
    """What the child writes: a membership, or a code of the error tree with its words."""

    membership: Membership | None = None
    code: str = ""
    message: str = ""
    hint: str = ""


def enrol_command(step: Step) -> list[str]:
    """How the child is started."""
    return [sys.executable, "-P", "-m", "din.enrol", step]


def decode_enrol_answer(raw: bytes) -> Membership:
    """The membership in a child's answer. Raises the error that it tells, or Internal."""
    try:
        answer = msgspec.json.decode(raw, type=EnrolAnswer)
    except MALFORMED:
        raise Internal("the joining process ended without an answer") from None
    if answer.membership is None:
        raise error_of_code(answer.code, answer.message, answer.hint)
    return answer.membership


def encode_enrol_answer(outcome: Membership | DinError) -> bytes:
    """A child's answer."""
    if isinstance(outcome, DinError):
        answer = EnrolAnswer(code=outcome.code, message=outcome.message, hint=outcome.hint)
    else:
        answer = EnrolAnswer(membership=outcome)
    return msgspec.json.encode(answer)


def has_joined(folder: Path) -> bool:
    """Whether a node with this `trust` folder is one of a cluster."""
    return (folder / FILE).is_file()


def read_membership(folder: Path) -> Membership:
    """Raises Unavailable when the file is missing or broken."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(FILE_BYTES_MAX), type=Membership)
    except FileNotFoundError:
        raise Unavailable(
            f"{path} is missing: this machine has not joined a cluster",
            hint="join one: din node join -",
        ) from None
    except OSError as error:
        raise disk_error(path, error) from error
    except MALFORMED as error:
        raise Unavailable(
            f"{path} cannot be read: {error}", hint="join anew: din node join -"
        ) from None


def membership_of(
    node_id: str, enrolled: Enrolled, began_ms: int, *, is_own: bool = False
) -> Membership:
    """Times by this machine's own clock: it is what they are held against."""
    return Membership(
        cluster=enrolled.cluster,
        node_id=node_id,
        gateways=enrolled.gateways,
        signing_key=enrolled.signing_key,
        begins_ms=began_ms,
        ends_ms=began_ms + max(0, enrolled.ends_ms - enrolled.begins_ms),
        name=enrolled.name,
        is_own=is_own,
    )


def write_membership(folder: Path, membership: Membership) -> None:
    """Replace `cluster.json`. Raises Unavailable or Denied."""
    write_enrolled(folder, membership, {})


def write_enrolled(folder: Path, membership: Membership, files: Mapping[Path, bytes]) -> None:
    """Replace files of certificates and then `cluster.json`. Raises Unavailable or Denied."""
    content = msgspec.json.encode(membership) + b"\n"
    write_together({**files, folder / FILE: content})
