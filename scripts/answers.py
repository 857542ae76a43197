"""Writes docs/answers.md: what the routes of the control API answer, field by field.

    python scripts/answers.py

It is made of the structs that are encoded, with their docstrings: nobody has to remember it. A test
compares it, and knows every route.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from din.api.trust import TokenList
from din.domain.audit import AuditCheck, AuditList
from din.domain.gateway_view import GatewayView
from din.domain.heat import HeatView
from din.domain.keys import KeyList
from din.domain.profile import ProfileView, VerifyView
from din.domain.request import Trace
from din.domain.views import (
    CutsView,
    ModelList,
    ModelView,
    NodeList,
    NodeView,
    PlanView,
    SliceAgainView,
    TraceList,
)

TARGET: Final = Path(__file__).parents[1] / "docs" / "answers.md"
ANSWERS: Final[dict[str, type[msgspec.Struct]]] = {
    "GET /api/v1/gateway": GatewayView,
    "GET /api/v1/nodes": NodeList,
    "GET /api/v1/nodes/{node}": NodeView,
    "GET /api/v1/nodes/{node}/heat": HeatView,
    "GET /api/v1/models": ModelList,
    "GET /api/v1/models/{model}": ModelView,
    "GET /api/v1/models/{model}/cuts": CutsView,
    "POST /api/v1/models/{model}/slice": SliceAgainView,
    "POST /api/v1/models/{model}/profile": ProfileView,
    "POST /api/v1/models/{model}/verify": VerifyView,
    "GET /api/v1/plan": PlanView,
    "GET /api/v1/traces": TraceList,
    "GET /api/v1/traces/{request_id}": Trace,
    "GET /api/v1/keys": KeyList,
    "GET /api/v1/audit": AuditList,
    "GET /api/v1/audit/check": AuditCheck,
    "GET /api/v1/trust/tokens": TokenList,
}
"""Route -> the struct that is its answer."""
HEAD: Final = """\
# Answers, field by field

What the routes of the control API answer, and `din ... -o json` prints. Written by
`scripts/answers.py` from the structs that are encoded. A field may be added at any time; `schema`
changes when one changes its meaning. Where nothing is said of a field, its name says all. What
routes ask for is in [http.md](http.md). `GET /api/v1/events` sends server-sent events `nodes` and
`models`, each with the whole list as below whenever it changed, at most twice a second. The answers
under `/v2` are those of the Open Inference Protocol.

"""
_PLAIN: Final[dict[type[types.Type], str]] = {
    types.StrType: "text",
    types.IntType: "integer",
    types.FloatType: "number",
    types.BoolType: "true or false",
    types.BytesType: "base64",
    types.AnyType: "anything",
    types.NoneType: "null",
}


def document() -> str:
    """The whole file."""
    structs: dict[type, types.StructType] = {}
    for kind in ANSWERS.values():
        _collect(types.type_info(kind), structs)
    return HEAD + "\n".join(_section(kind, info) for kind, info in structs.items())


def _collect(kind: types.Type, found: dict[type, types.StructType]) -> None:
    """Structs in the order in which a reader meets them."""
    if isinstance(kind, types.StructType):
        if kind.cls in found:
            return
        found[kind.cls] = kind
        for field in kind.fields:
            _collect(field.type, found)
    for inner in _inside(kind):
        _collect(inner, found)


def _inside(kind: types.Type) -> Iterator[types.Type]:
    match kind:
        case types.Metadata():
            yield kind.type
        case types.UnionType():
            yield from kind.types
        case types.ListType() | types.VarTupleType():
            yield kind.item_type
        case types.TupleType():
            yield from kind.item_types
        case types.DictType():
            yield from (kind.key_type, kind.value_type)
        case _:
            return


def _section(kind: type, info: types.StructType) -> str:
    routes = [f"`{route}`" for route, each in ANSWERS.items() if each is kind]
    title = _name(kind)
    about = _one_line(re.sub(r"^(GET|POST) \S+?[.:]? (?=\w)|^(GET|POST) \S+$", "", _about(kind)))
    about = about[:1].upper() + about[1:]
    lead = " ".join(filter(None, (f"{', '.join(routes)}." if routes else "", about)))
    meanings = _meanings(kind)
    if info.array_like:
        lead += " A list of these, in order:"
    rows = [
        f"| `{field.encode_name}` | {_words(field.type)} | {_meaning(field, meanings)} |"
        for field in info.fields
    ]
    tag = [f"| `{info.tag_field}` | text | `{info.tag}` |"] if info.tag_field else []
    table = "\n".join(["| field | type | meaning |", "|---|---|---|", *tag, *rows])
    return f"## {title.capitalize()}\n\n{lead}\n\n{table}\n"


def _about(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "")


def _one_line(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split())).replace("|", "\\|")


def _meaning(field: types.Field, meanings: dict[str, str]) -> str:
    if field.encode_name == "schema":
        return f"`{field.default}`"
    return _one_line(meanings.get(field.name, ""))


def _meanings(kind: type) -> dict[str, str]:
    """Field -> its docstring: the text below it in the class."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[before.target.id] = value.value
    return found


def _words(kind: types.Type) -> str:
    """A type as people say it."""
    match kind:
        case types.Metadata():
            return _words(kind.type)
        case types.UnionType():
            words = [_words(each) for each in sorted(kind.types, key=_is_null)]
            return " or ".join(dict.fromkeys(words))
        case types.StructType():
            return _link(kind.cls)
        case types.ListType() | types.VarTupleType():
            words = _words(kind.item_type)
            return f"list of ({words})" if " or " in words else f"list of {words}"
        case types.TupleType():
            return f"[{', '.join(_words(each) for each in kind.item_types)}]"
        case types.DictType():
            return f"{_words(kind.key_type)} to {_words(kind.value_type)}"
        case types.LiteralType():
            return ", ".join(f"`{each}`" if each else "empty" for each in kind.values)
        case _:
            return _PLAIN[type(kind)]


def _is_null(kind: types.Type) -> bool:
    return isinstance(kind, types.NoneType)


def _name(kind: type[Any]) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()


def _link(kind: type[Any]) -> str:
    words = _name(kind)
    return f"[{words}](#{words.replace(' ', '-')})"


if __name__ == "__main__":
    TARGET.write_text(document())
