"""The JSON part of a request by the Open Inference Protocol."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

TensorName = Annotated[str, Meta(max_length=4096)]
DatatypeWord = Annotated[str, Meta(max_length=16)]


class OipTensor(Struct):
    """One input of a request."""

    name: TensorName
    shape: list[int]
    datatype: DatatypeWord
    parameters: dict[str, Any] = {}
    data: Any = UNSET


class OipWanted(Struct):
    """One output that a request asks for."""

    name: TensorName
    parameters: dict[str, Any] = {}


class OipRequest(Struct):
    """The JSON part of a request."""

    inputs: list[OipTensor]
    id: str | None = None
    parameters: dict[str, Any] = {}
    outputs: list[OipWanted] | None = None
