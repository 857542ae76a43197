"""A model that a server behind a node has, as what the carver finds in a file: one slice. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec.structs import replace

from din.domain.foreign import ForeignModel, backend_of
from din.domain.forms import runs_whole
from din.domain.model import GATEWAY, CarveAnswer, Edge, Slice
from din.domain.strategy import Strategy
from din.domain.views import RegisterModel
from din.errors import UsageError

MEMORY_MIB: Final = 48
"""Of the client of the server, not of the model: its memory is the server's business."""
STRATEGY_HINT: Final = "leave slicing_strategy out; slices[0] may say nodes, labels, sensitive"


def name_and_node(text: str) -> tuple[str, str]:
    """`NAME` or `NAME@NODE` apart; the node may be empty."""
    name, _, node = text.rpartition("@") if "@" in text else (text, "", "")
    return name, node


def check_foreign(order: RegisterModel) -> None:
    """Raises UsageError for what only a file can have."""
    if not order.foreign:
        return
    name, _ = name_and_node(order.foreign)
    if not name:
        raise UsageError(f"foreign is {order.foreign!r}", hint="write it as NAME or NAME@NODE")
    for key, is_given in (
        ("source_sha256", bool(order.source_sha256 or order.external)),
        ("inputs", bool(order.inputs)),
        ("backend_options", bool(order.backend_options)),
        ("encrypt", bool(order.encrypt)),
        ("calibration_sha256", bool(order.calibration_sha256)),
    ):
        if is_given:
            raise UsageError(
                f"{key} is given for model {name!r}, which a server has and no file",
                hint=f"leave {key} out",
            )
    strategy = order.slicing_strategy
    if len(strategy.slices) > 1 or replace(strategy, slices=(), private="") != Strategy():
        raise UsageError(
            f"a slicing strategy is given for model {name!r}, which a server runs whole",
            hint=STRATEGY_HINT,
        )


def check_file(order: RegisterModel, slices: Iterable[Slice], what: str) -> None:
    """Raises UsageError for a model without an ONNX file: there is nothing to look into."""
    if order.foreign:
        raise UsageError(
            f"model {order.model_id!r} cannot be {what}: a server runs it, and DIN has no file",
            hint="register its ONNX file for that",
        )
    for part in slices:
        if runs_whole(part.backend):
            raise UsageError(
                f"model {order.model_id!r} cannot be {what}: {part.backend} runs its file whole",
                hint="register it as an ONNX file for that",
            )


def carved_foreign(order: RegisterModel, found: ForeignModel) -> CarveAnswer:
    """The partition of a model that stays at its server. Raises UsageError."""
    setting = order.slicing_strategy.slices[0] if order.slicing_strategy.slices else None
    backend = backend_of(found.name)
    if setting is not None and setting.backend not in (None, backend):
        raise UsageError(
            f"slices[0].backend is {setting.backend!r}, and the model is {backend!r}",
            hint="leave it out",
        )
    _, node = name_and_node(order.foreign)
    content = msgspec.json.encode((backend, found.inputs, found.outputs))
    slice_id = hashlib.sha256(b"din-foreign-1\0" + content).hexdigest()
    part = Slice(
        index=0,
        slice_id=slice_id,
        name=(setting.name if setting is not None else "") or "whole",
        inputs=found.inputs,
        outputs=found.outputs,
        backend=backend,
        memory_mib=MEMORY_MIB,
        nodes=(node,) if node else (),
    )
    if setting is not None:
        part = replace(
            part,
            device_type=setting.device_type,
            labels=setting.labels,
            is_sensitive=setting.sensitive,
            nodes=part.nodes or setting.nodes,
            not_nodes=setting.not_nodes,
        )
    return CarveAnswer(
        source_sha256=slice_id,
        inputs=found.inputs,
        outputs=found.outputs,
        slices=(part,),
        edges=(
            *(Edge(spec.name, GATEWAY, (0,)) for spec in found.inputs),
            *(Edge(spec.name, 0, (GATEWAY,)) for spec in found.outputs),
        ),
        cuts=(),
        operators=0,
        opset=0,
        ir_version=0,
    )
