"""What operators a slice asks of a backend, with versions and the attributes that decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto
from onnx.defs import OpSchema, SchemaError, get_schema

from din.domain.support import DECIDING, Need, Needs
from din.slicing.functions import FunctionKey, called_by, functions_of
from din.slicing.operators import Operator
from din.slicing.source import nodes_within

_OWN = ("", "ai.onnx")


def needs_of(model: ModelProto, operators: Iterable[Operator], opset: int) -> Needs:
    """Each different use of an operator once, under the name of the first node that uses it."""
    functions = functions_of(model)
    versions = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    found: dict[tuple[object, ...], Need] = {}
    for operator in operators:
        for node, sets in _spread(operator.proto, versions, functions):
            if node.op_type == "Constant" and node.domain in _OWN:
                continue  # a stored tensor in another form: no engine runs it
            need = _need(node, node.name or operator.name, sets)
            found.setdefault((need.operator, need.since, need.attributes), need)
    return Needs(opset, model.ir_version, tuple(found.values()))


def _spread(
    top: NodeProto,
    versions: dict[str, int],
    functions: dict[FunctionKey, FunctionProto],
) -> Iterator[tuple[NodeProto, dict[str, int]]]:
    """A node with all inside it; a local function stands for what it is made of, once."""
    pending = [(node, versions) for node in nodes_within((top,))]
    entered: set[FunctionKey] = set()
    while pending:
        node, sets = pending.pop(0)
        function = functions.get(called_by(node))
        if function is None:
            yield node, sets
            continue
        key = called_by(node)
        if key not in entered:
            entered.add(key)
            own = {each.domain or "ai.onnx": each.version for each in function.opset_import}
            pending += [(each, own or sets) for each in nodes_within(function.node)]


def _need(node: NodeProto, name: str, versions: dict[str, int]) -> Need:
    domain = "" if node.domain in _OWN else node.domain
    operator = f"{domain}.{node.op_type}" if domain else node.op_type
    version = versions.get(domain or "ai.onnx", 1)
    schema = _schema(node.op_type, domain, version)
    if schema is None:
        return Need(operator, version, name)
    values = tuple(_values(node, schema, DECIDING.get(operator, ())))
    declared: Any = schema  # the stubs do not know its two marks
    is_function = declared.has_function or declared.has_context_dependent_function
    return Need(operator, schema.since_version, name, values, is_function)


def _schema(kind: str, domain: str, version: int) -> OpSchema | None:
    """None for what ONNX itself does not define: operators of engines and of the user."""
    try:
        return get_schema(kind, version, domain)
    except SchemaError:
        return None


def _values(node: NodeProto, schema: OpSchema, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    given = {each.name: each for each in node.attribute}
    for name in names:
        declared = schema.attributes.get(name)
        value = given.get(name) or (declared.default_value if declared is not None else None)
        if value is not None and (text := _text(value)):
            yield name, text


def _text(value: AttributeProto) -> str:
    if value.type == AttributeProto.STRING:
        return value.s.decode(errors="replace")
    if value.type == AttributeProto.INT:
        return str(value.i)
    return ""
