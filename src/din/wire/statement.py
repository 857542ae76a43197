"""What a gateway signs of a slice: the canonical bytes of all that decides what a worker will run.

Neither epoch nor peers nor times are in it, so one signature lasts as long as the model's version.
The form is in docs/protocol/frames.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from din.domain.malformed import MALFORMED
from din.domain.model import AdapterSpec, Artifact, Slice, SliceKind
from din.errors import BadModel

STATEMENT_VERSION: Final = 1


class Statement(Struct, frozen=True, kw_only=True):
    """The signed facts of one slice."""

    version: int = STATEMENT_VERSION
    model_id: str
    slice_id: str
    kind: SliceKind
    artifacts: tuple[Artifact, ...]
    backend: str
    backend_options: dict[str, str]
    adapter: AdapterSpec | None
    opset: int
    operators: int
    memory_mib: int
    is_sensitive: bool = False


def statement_of(model_id: str, part: Slice, backend_options: Mapping[str, str]) -> bytes:
    """Canonical bytes: JSON without spaces, keys sorted by code point, every field present."""
    statement = Statement(
        model_id=model_id,
        slice_id=part.slice_id,
        kind=part.kind,
        artifacts=part.artifacts,
        backend=part.backend,
        backend_options=dict(backend_options),
        adapter=part.adapter,
        opset=part.opset,
        operators=part.operators,
        memory_mib=part.memory_mib,
        is_sensitive=part.is_sensitive,
    )
    return msgspec.json.encode(statement, order="sorted")


def read_statement(data: bytes | str) -> Statement:
    """Back from canonical bytes, after their signature was verified. Raises BadModel."""
    try:
        statement = msgspec.json.decode(data, type=Statement)
    except MALFORMED as error:
        raise BadModel(f"the statement of the slice cannot be read: {error}") from None
    if statement.version != STATEMENT_VERSION:
        raise BadModel(
            f"the statement of the slice has version {statement.version}, this node reads "
            f"{STATEMENT_VERSION}",
            hint="update the older of gateway and node",
        )
    return statement
