"""What operators a slice asks of a backend, with versions and the attributes that decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto
from onnx.defs import OpSchema, SchemaError, get_schema

from din.domain.support import DECIDING, ZERO_POINT, Need, Needs
from din.errors import BadModel
from din.slicing.functions import FunctionKey, called_by, functions_of
from din.slicing.operators import Operator
from din.slicing.source import Held, held_by, nodes_within, unfolded

_OWN = ("", "ai.onnx")


class Added(NamedTuple):
    """Nodes that no model has, and what is stored for them."""

    nodes: Sequence[NodeProto] = ()
    stored: Sequence[TensorProto] = ()


NOTHING_ADDED: Final = Added()
_ZERO_POINT_PLACE: Final = 2
_DATATYPE: Final = "to"
"""The attribute of Cast that holds a datatype's number."""


def needs_of(
    model: ModelProto,
    operators: Iterable[Operator],
    opset: int,
    added: Added = NOTHING_ADDED,
) -> Needs:
    """Each different use of an operator once, under the name of the first node that uses it;
    `added`: what is beside the model's own."""
    functions = functions_of(model)
    versions = {each.domain or "ai.onnx": each.version for each in model.opset_import}
    stored = {each.name: each.data_type for each in (*model.graph.initializer, *added.stored)}
    found: dict[tuple[object, ...], Need] = {}
    named = [(each.held, each.name) for each in operators]
    for held, name in (*named, *((held_by(each), each.name) for each in added.nodes)):
        for node, sets in _spread(held, versions, functions):
            if node.op_type == "Constant" and node.domain in _OWN:
                continue  # a stored tensor in another form: no engine runs it
            need = _need(node, node.name or name, sets, stored)
            found.setdefault((need.operator, need.since, need.attributes), need)
    return Needs(opset, model.ir_version, tuple(found.values()))


def _spread(
    top: Held,
    versions: dict[str, int],
    functions: dict[FunctionKey, FunctionProto],
) -> Iterator[tuple[NodeProto, dict[str, int]]]:
    """A node with all inside it; a local function stands for what it is made of, once."""
    pending = [(held.node, versions) for held in unfolded(top)]
    entered: set[FunctionKey] = set()
    while pending:
        node, sets = pending.pop(0)
        key = called_by(node)
        function = functions.get(key)
        if function is None:
            yield node, sets
            continue
        if key not in entered:
            entered.add(key)
            own = {each.domain or "ai.onnx": each.version for each in function.opset_import}
            pending += [(each, own or sets) for each in nodes_within(function.node)]


def _need(node: NodeProto, name: str, versions: dict[str, int], stored: Mapping[str, int]) -> Need:
    domain = "" if node.domain in _OWN else node.domain
    operator = f"{domain}.{node.op_type}" if domain else node.op_type
    version = versions.get(domain or "ai.onnx", 1)
    schema = _schema(node.op_type, domain, version)
    if schema is None:
        return Need(operator, version, name)
    values = tuple(_values(node, schema, DECIDING.get(operator, ()), stored))
    declared: Any = schema  # the stubs do not know its two marks
    is_function = declared.has_function or declared.has_context_dependent_function
    return Need(operator, schema.since_version, name, values, is_function)


def _schema(kind: str, domain: str, version: int) -> OpSchema | None:
    """None for what ONNX itself does not define: operators of engines and of the user. Raises
    BadModel for words that are no text: the parser hands those over as bytes."""
    try:
        return get_schema(kind, version, domain)
    except SchemaError:
        return None
    except TypeError:
        raise BadModel(
            f"an operator is {kind!r} of the domain {domain!r}, which is no text in UTF-8",
            hint="the file is damaged: fetch or export it again",
        ) from None


def _values(
    node: NodeProto, schema: OpSchema, names: tuple[str, ...], stored: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    given = {each.name: each for each in node.attribute}
    for name in names:
        if name == ZERO_POINT:
            yield from _zero_point(node, stored)
            continue
        declared = schema.attributes.get(name)
        value = given.get(name) or (declared.default_value if declared is not None else None)
        if value is not None and (text := _text(value)):
            yield name, text


def _zero_point(node: NodeProto, stored: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Nothing where it is computed: its datatype is not known here."""
    name = node.input[_ZERO_POINT_PLACE] if len(node.input) > _ZERO_POINT_PLACE else ""
    kind = stored.get(name) if name else TensorProto.UINT8
    if kind is not None:
        yield ZERO_POINT, TensorProto.DataType.Name(kind)


def _text(value: AttributeProto) -> str:
    if value.type == AttributeProto.STRING:
        return value.s.decode(errors="replace")
    if value.name == _DATATYPE and value.i in TensorProto.DataType.values():
        return TensorProto.DataType.Name(value.i)
    if value.type == AttributeProto.INT:
        return str(value.i)
    return ""
