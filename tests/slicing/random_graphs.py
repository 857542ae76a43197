"""Graphs drawn step by step, with everything in them that slicers get wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import (
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

FLOAT, INT64, BOOL, UINT8 = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.UINT8,
)
SHAPES = ((2, 3), (2, 3), (), (0, 3))
OPSET = 18
UNARY = ("Relu", "Tanh", "Neg", "Sigmoid", "Abs")
BINARY = ("Add", "Mul", "Sub", "Max")
IMPORTS = [
    helper.make_opsetid("", OPSET),
    helper.make_opsetid("own", 1),
    helper.make_opsetid("com.microsoft", 1),
]
SINGLE_STEPS = (
    "unary",
    "unary",
    "binary",
    "binary",
    "weighted",
    "clip",
    "dropout",
    "branch",
    "loop",
    "function",
    "pair",
    "sequence",
    "element",
    "optional",
    "inside",
    "quantise",
    "dequantise",
    "constant",
    "shuffled constant",
    "noise",
    "gelu",
)
MATRIX_STEPS = ("scan", "sparse", "fused", "concat")
"""Only where values have rows."""


@dataclass
class Drawn:
    """What has been drawn so far; values by kind."""

    draw: Any
    shape: tuple[int, ...]
    nodes: list[NodeProto] = field(default_factory=list)
    stored: dict[str, Any] = field(default_factory=dict)
    sparse: list[Any] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    bytes: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    sequences: list[str] = field(default_factory=list)
    count: int = 0
    unread: set[str] = field(default_factory=set)

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def value(self) -> str:
        """Mostly one of the newest, so that graphs are long and not only wide."""
        back = self.draw(st.sampled_from((1, 1, 2, 2, 3, 5, 100)))
        taken = self.floats[-min(back, len(self.floats))]
        self.unread.discard(taken)
        return taken

    def weight(self) -> str:
        """One of three weights, so that operators share them."""
        number = self.draw(st.integers(0, 2))
        array = np.full(self.shape, 0.5 + number, np.float32)
        return self.store(f"w{number}", array)

    def store(self, name: str, array: Any) -> str:
        self.stored[name] = np.asarray(array)
        return name

    def add(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))

    def info(self, name: str, kind: int = FLOAT) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, self.shape)

    def made(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """A new float by one operator."""
        made = self.float()
        self.add(kind, inputs, [made], **attributes)
        return made

    def float(self) -> str:
        """The name of a new float."""
        self.floats.append(self.name())
        self.unread.add(self.floats[-1])
        return self.floats[-1]

    # Steps, each by its name.

    def unary(self) -> None:
        self.made(self.draw(st.sampled_from(UNARY)), [self.value()])

    def binary(self) -> None:
        self.made(self.draw(st.sampled_from(BINARY)), [self.value(), self.value()])

    def weighted(self) -> None:
        self.made(self.draw(st.sampled_from(BINARY)), [self.value(), self.weight()])

    def clip(self) -> None:
        """An optional input left out in the middle."""
        self.made("Clip", [self.value(), "", self.store("top", np.float32(1.5))])

    def dropout(self) -> None:
        given = self.value()
        self.masks.append(self.name())
        self.add("Dropout", [given], [self.float(), self.masks[-1]])

    def constant(self) -> None:
        """Made from constants alone, by two operators."""
        tensor = numpy_helper.from_array(np.full(self.shape, 0.25, np.float32))
        first = self.name()
        self.add("Constant", [], [first], value=tensor)
        self.made("Neg", [first])

    def shuffled_constant(self) -> None:
        """A constant that stands first in the file, before all that could read it."""
        tensor = numpy_helper.from_array(np.full(self.shape, -0.75, np.float32))
        node = helper.make_node("Constant", [], [self.float()], value=tensor)
        self.nodes.insert(0, node)

    def noise(self) -> None:
        seed = float(self.draw(st.integers(1, 9)))
        self.made("RandomNormalLike", [self.value()], seed=seed)

    def gelu(self) -> None:
        self.made("Gelu", [self.value()], domain="com.microsoft")

    def condition(self) -> str:
        total, made = self.name(), self.name()
        self.add("ReduceSum", [self.value()], [total], keepdims=0)
        self.add("Greater", [total, self.store("zero", np.float32(0))], [made])
        return made

    def inner(self, depth: int) -> GraphProto:
        """A branch of an If: captures values and weights, may hold another If and a function."""
        one, out = self.name(), self.name()
        kind = self.draw(st.sampled_from(("add", "function", "nested", "captured", "stored")))
        nodes: list[NodeProto] = []
        stored = []
        if kind == "nested" and depth < 2:
            branches = {f"{side}_branch": self.inner(depth + 1) for side in ("then", "else")}
            flag = self.store("flag", np.bool_(self.draw(st.booleans())))
            nodes.append(helper.make_node("If", [flag], [one], **branches))
        elif kind == "function":
            nodes.append(helper.make_node("F", [self.value()], [one], domain="own"))
        elif kind == "captured":
            nodes.append(helper.make_node("Identity", [self.value()], [one]))
        elif kind == "stored":
            stored.append(numpy_helper.from_array(np.full(self.shape, 7, np.float32), f"s{out}"))
            nodes.append(helper.make_node("Add", [self.value(), f"s{out}"], [one]))
        else:
            nodes.append(helper.make_node("Add", [self.value(), self.weight()], [one]))
        nodes.append(helper.make_node("Neg", [one], [out]))
        return helper.make_graph(nodes, f"inner{out}", [], [self.info(out)], stored)

    def branch(self) -> None:
        condition = self.condition()
        self.made("If", [condition], then_branch=self.inner(0), else_branch=self.inner(0))

    def loop(self) -> None:
        number, going, state, left, more = (self.name() for _ in range(5))
        body = helper.make_graph(
            [
                helper.make_node("Identity", [going], [more]),
                helper.make_node("Add", [state, self.value()], [left]),
            ],
            "body",
            [
                helper.make_tensor_value_info(number, INT64, []),
                helper.make_tensor_value_info(going, BOOL, []),
                self.info(state),
            ],
            [helper.make_tensor_value_info(more, BOOL, []), self.info(left)],
        )
        times = self.store("times", np.int64(2))
        self.made("Loop", [times, "", self.value()], body=body)

    def scan(self) -> None:
        """Row by row, with a captured value."""
        row, out = self.name(), self.name()
        rows = helper.make_tensor_value_info(row, FLOAT, [3])
        outs = helper.make_tensor_value_info(out, FLOAT, [3])
        total = self.name()
        nodes = [
            helper.make_node("ReduceMax", [self.value()], [total], keepdims=0),
            helper.make_node("Add", [row, total], [out]),
        ]
        body = helper.make_graph(nodes, "rows", [rows], [outs])
        self.made("Scan", [self.value()], body=body, num_scan_inputs=1)

    def function(self) -> None:
        self.made(self.draw(st.sampled_from(("F", "G"))), [self.value()], domain="own")

    def pair(self) -> None:
        """Two outputs by one function; the second may be read alone."""
        given = self.value()
        self.add("P", [given], [self.float(), self.float()], domain="own")

    def sequence(self) -> None:
        self.sequences.append(self.name())
        members = [self.value() for _ in range(2)]
        self.nodes.append(helper.make_node("SequenceConstruct", members, [self.sequences[-1]]))

    def element(self) -> None:
        if self.sequences:
            taken = self.draw(st.sampled_from(self.sequences))
            self.made("SequenceAt", [taken, self.store("first", np.int64(0))])

    def concat(self) -> None:
        if self.sequences:
            taken, rows = self.draw(st.sampled_from(self.sequences)), self.name()
            self.add("ConcatFromSequence", [taken], [rows], axis=0)
            ends = [self.store("from", np.array([0])), self.store("to", np.array([2]))]
            self.made("Slice", [rows, *ends])

    def optional(self) -> None:
        held = self.name()
        self.add("Optional", [self.value()], [held])
        self.made("OptionalGetElement", [held])

    def inside(self) -> None:
        """A random operator and a captured one inside a branch."""
        out = self.name()
        nodes = [helper.make_node("RandomNormalLike", [self.value()], [out], seed=3.0)]
        then = helper.make_graph(nodes, f"draws{out}", [], [self.info(out)])
        self.made("If", [self.condition()], then_branch=then, else_branch=self.inner(0))

    def quantise(self) -> None:
        self.bytes.append(self.name())
        self.add("QuantizeLinear", [self.value(), *self.scales()], [self.bytes[-1]])

    def dequantise(self) -> None:
        if self.bytes:
            taken = self.draw(st.sampled_from(self.bytes))
            self.made("DequantizeLinear", [taken, *self.scales()])

    def scales(self) -> list[str]:
        return [self.store("scale", np.float32(0.1)), self.store("point", np.uint8(128))]

    def sparse_weight(self) -> None:
        values = helper.make_tensor("sp", FLOAT, [2], [1.5, -2.5])
        indices = helper.make_tensor("sp_at", INT64, [2], [1, 4])
        if not self.sparse:
            self.sparse.append(helper.make_sparse_tensor(values, indices, [2, 3]))
        self.made("Add", [self.value(), "sp"])

    def fused(self) -> None:
        square = self.store("square", np.eye(3, dtype=np.float32) * 0.5)
        self.made("FusedMatMul", [self.value(), square], domain="com.microsoft", alpha=2.0)


def _function(name: str, outputs: list[str], *nodes: NodeProto) -> FunctionProto:
    return helper.make_function("own", name, ["v"], outputs, list(nodes), IMPORTS[:2])


FUNCTIONS = [
    _function("F", ["w"], helper.make_node("Tanh", ["v"], ["w"])),
    _function(
        "G",
        ["w"],
        helper.make_node("F", ["v"], ["u"], domain="own"),
        helper.make_node("Neg", ["u"], ["w"]),
    ),
    _function(
        "P",
        ["w", "u"],
        helper.make_node("Abs", ["v"], ["w"]),
        helper.make_node("Neg", ["w"], ["u"]),
    ),
]


@dataclass
class RandomGraph:
    """A model that the runtime takes, the same as a careless exporter wrote it, and an input."""

    model: ModelProto
    careless: bytes
    feeds: dict[str, Any]


@st.composite
def random_graphs(draw: Any, steps_max: int = 14) -> RandomGraph:
    """Draw one."""
    drawn = Drawn(draw, draw(st.sampled_from(SHAPES)))
    inputs = [f"in{number}" for number in range(draw(st.integers(1, 3)))]
    drawn.floats.extend(inputs)
    drawn.unread.update(inputs)
    steps = SINGLE_STEPS + (MATRIX_STEPS if drawn.shape == (2, 3) else ())
    for step in draw(st.lists(st.sampled_from(steps), min_size=3, max_size=steps_max)):
        name = {"shuffled constant": "shuffled_constant", "sparse": "sparse_weight"}.get(step, step)
        getattr(drawn, name)()
    # Nothing is drawn in vain: what nobody read is summed up.
    drawn.made("Sum", sorted(drawn.unread) or [drawn.floats[-1]])
    model = _model(drawn, inputs)
    chance = np.random.default_rng(draw(st.integers(0, 3)))
    feeds = {name: chance.normal(0, 1, drawn.shape).astype(np.float32) for name in inputs}
    return RandomGraph(model, _careless(draw, model), feeds)


def _model(drawn: Drawn, inputs: list[str]) -> ModelProto:
    draw = drawn.draw
    outputs = [drawn.floats[-1]]
    others = [*drawn.floats, *drawn.stored.keys() & {"w0", "w1", "w2"}]
    outputs += draw(st.lists(st.sampled_from(sorted(others)), max_size=2))
    infos = [drawn.info(name) for name in dict.fromkeys(outputs)]
    for kind, names in ((UINT8, drawn.bytes), (BOOL, drawn.masks)):
        if names and draw(st.booleans()):
            infos.append(drawn.info(draw(st.sampled_from(names)), kind))
    stored = [numpy_helper.from_array(array, name) for name, array in drawn.stored.items()]
    taken = [drawn.info(name) for name in inputs]
    if drawn.stored.keys() & {"w0"} and draw(st.booleans()):
        taken.append(drawn.info("w0"))  # a weight that is a graph input as well
    graph = helper.make_graph(
        drawn.nodes, "drawn", taken, infos, stored, sparse_initializer=drawn.sparse
    )
    return helper.make_model(graph, opset_imports=IMPORTS, functions=FUNCTIONS, ir_version=10)


def _careless(draw: Any, model: ModelProto) -> bytes:
    """Doubled and missing names, operators in any order."""
    made = ModelProto()
    made.CopyFrom(model)
    nodes = list(made.graph.node)
    for node in nodes:
        node.name = draw(st.sampled_from(("", "", "same", node.output[0] + "/op")))
    if draw(st.booleans()):
        nodes.reverse()
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made.SerializeToString()
