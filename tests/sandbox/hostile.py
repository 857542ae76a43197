"""Models that a stranger might send: what they ask for, made anew for each test."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

SECRET: Final = b"a secret of the machine's own, 48 bytes of it, ok"[:48]
FLOAT: Final = TensorProto.FLOAT


def model(
    nodes: list[NodeProto],
    initializers: list[TensorProto] | None = None,
    *,
    output: str = "y",
    opsets: tuple[tuple[str, int], ...] = (("", 17),),
) -> ModelProto:
    """From x, four numbers, to y."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", FLOAT, [4])], [info(output, FLOAT, None)], initializers or []
    )
    imports = [helper.make_opsetid(*each) for each in opsets]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


def add(first: str = "x", second: str = "w", to: str = "y") -> NodeProto:
    return helper.make_node("Add", [first, second], [to], f"add-{to}")


def outside(location: str, nbytes: int = 48, name: str = "w") -> TensorProto:
    """A weight that lies where the model says."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=[nbytes // 4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def weight(dims: list[int], data: bytes = b"") -> TensorProto:
    return TensorProto(name="w", data_type=FLOAT, dims=dims, raw_data=data)


def integers(name: str, values: list[int]) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def endless() -> ModelProto:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Identity", ["held"], ["next"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("going", TensorProto.BOOL, []),
            info("held", FLOAT, [4]),
        ],
        [info("on", TensorProto.BOOL, []), info("next", FLOAT, [4])],
    )
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    most = helper.make_tensor("most", TensorProto.INT64, [], [2**62])
    return model([helper.make_node("Loop", ["most", "yes", "x"], ["y"], body=body)], [yes, most])


def same() -> GraphProto:
    info = helper.make_tensor_value_info("y", FLOAT, None)
    return helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [], [info])


def branch(graph: GraphProto) -> NodeProto:
    return helper.make_node("If", ["yes"], ["y"], then_branch=graph, else_branch=same())


def in_subgraph() -> ModelProto:
    info = helper.make_tensor_value_info("z", FLOAT, None)
    inner = helper.make_graph([add("x", "w", "z")], "inner", [], [info], [outside("secret.bin")])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return model([branch(inner)], [yes])


def deep(levels: int) -> ModelProto:
    info = helper.make_tensor_value_info("y", FLOAT, None)
    graph = same()
    for _ in range(levels):
        graph = helper.make_graph([branch(graph)], "g", [], [info])
    return model([branch(graph)], [helper.make_tensor("yes", TensorProto.BOOL, [], [True])])


def constant(value: TensorProto) -> ModelProto:
    return model([helper.make_node("Constant", [], ["w"], value=value), add()])


def sparse() -> ModelProto:
    made = model([add()])
    found = made.graph.sparse_initializer.add()
    found.values.CopyFrom(outside("secret.bin"))
    found.indices.CopyFrom(integers("at", list(range(12))))
    found.dims.extend([12])
    return made


def sparse_constant() -> ModelProto:
    held = AttributeProto(name="sparse_value", type=AttributeProto.SPARSE_TENSOR)
    held.sparse_tensor.CopyFrom(sparse().graph.sparse_initializer[0])
    node = helper.make_node("Constant", [], ["w"])
    node.attribute.append(held)
    return model([node, add()])


def cycle() -> ModelProto:
    return model([add("x", "y", "a"), add("a", "x", "y")])


def filled(count: int) -> ModelProto:
    node = helper.make_node("ConstantOfShape", ["n"], ["big"])
    return model([node, add("x", "big")], [integers("n", [count])])


def expanded() -> ModelProto:
    node = helper.make_node("Expand", ["one", "n"], ["big"])
    one = helper.make_tensor("one", FLOAT, [1], [1.0])
    return model([node, add("x", "big")], [integers("n", [2**40]), one])


def foreign(kind: str, domain: str) -> ModelProto:
    node = helper.make_node(kind, ["x"], ["y"], domain=domain, ep_cache_context="/etc/passwd")
    return model([node], opsets=(("", 17), (domain, 1)))


def long(count: int) -> ModelProto:
    nodes = [helper.make_node("Abs", [f"t{n}"], [f"t{n + 1}"]) for n in range(count)]
    nodes[0].input[0] = "x"
    return model(nodes, output=f"t{count}")


def models() -> dict[str, Callable[[], bytes]]:
    """By name. Where one names a file it means one of those that `beside` makes."""
    made: dict[str, Callable[[], ModelProto]] = {
        f"weights in {place}": lambda place=place: model([add()], [outside(place)])
        for place in (
            *("../secret.bin", "a/../../secret.bin", "secret.bin", "./secret.bin", "linked.bin"),
            *("folder/secret.bin", "hard.bin", "pipe", "/etc/passwd", "/proc/self/environ"),
            *("/dev/zero", "", "no\0name", "x" * 5000),
        )
    }
    made |= {
        "a constant outside": lambda: constant(outside("secret.bin")),
        "a sparse weight outside": sparse,
        "a sparse constant outside": sparse_constant,
        "a weight of a subgraph outside": in_subgraph,
        "2^40 numbers without data": lambda: model([add()], [weight([2**40])]),
        "2^62 x 4 numbers": lambda: model([add()], [weight([2**62, 4], b"1234")]),
        "a negative dimension": lambda: model([add()], [weight([-4], b"1" * 16)]),
        "64 GB of a constant": lambda: filled(2**34),
        "an expanding bomb": expanded,
        "an unknown domain": lambda: foreign("Evil", "com.evil"),
        "an engine's own context": lambda: foreign("EPContext", "com.microsoft"),
        "an endless loop": endless,
        "20 subgraphs deep": lambda: deep(20),
        "a circle": cycle,
        "20,000 operators": lambda: long(20_000),
        "the same output twice": lambda: model([add("x", "x"), add("x", "x")]),
    }
    found: dict[str, Callable[[], bytes]] = {
        name: lambda make=make: make().SerializeToString() for name, make in made.items()
    }
    return found | {
        "nothing": lambda: b"",
        "a length beyond the end": lambda: b"\x3a\xff\xff\xff\xff\x0f",
        "brackets in brackets": lambda: b"\x3a\x7e" * 60_000,
    }


def beside(folder: Path) -> None:
    """What hostile models name: a secret above, and ways to it."""
    (folder.parent / "secret.bin").write_bytes(SECRET)
    (folder / "secret.bin").write_bytes(SECRET)
    (folder / "linked.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "folder").symlink_to(folder.parent)
    (folder / "hard.bin").hardlink_to(folder.parent / "secret.bin")
    os.mkfifo(folder / "pipe")


def mutants(count: int, seed: int) -> Iterator[bytes]:
    """Small models with something changed, in the bytes or in what they mean."""
    chance = random.Random(seed)
    bases = [
        model([add(to="z"), helper.make_node("Relu", ["z"], ["y"])], [weight([4], b"1" * 16)]),
        in_subgraph(),
        endless(),
        filled(4),
    ]
    plain = [each.SerializeToString() for each in bases]
    for number in range(count):
        if number % 2:
            yield _bitten(bytearray(chance.choice(plain)), chance)
        else:
            yield _twisted(chance.choice(bases), chance)


def _bitten(data: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(data))
        match chance.randrange(4):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 8)]
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case _:
                data[at] ^= 1 << chance.randrange(8)
        if not data:
            break
    return bytes(data)


KINDS: Final = ("Loop", "If", "Conv", "Reshape", "Einsum", "QLinearConv")
NUMBERS: Final = (-(2**63), -1, 0, 1, 2**31, 2**40, 2**63 - 1)
WORDS: Final = ("", "x", "y", "w", "\0", "../secret.bin", "é" * 300)


def _twisted(base: ModelProto, chance: random.Random) -> bytes:
    made = ModelProto()
    made.CopyFrom(base)
    for _ in range(chance.randint(1, 3)):
        node = chance.choice(made.graph.node)
        match chance.randrange(8):
            case 0:
                node.op_type = chance.choice(
                    ("Loop", "If", "Conv", "Reshape", "Einsum", "QLinearConv")
                )
            case 1:
                node.input.append(chance.choice(WORDS))
            case 2:
                node.domain = chance.choice(("com.microsoft", "ai.onnx.ml", "evil"))
            case 3:
                node.attribute.append(helper.make_attribute("axis", chance.choice(NUMBERS)))
            case 4:
                made.opset_import[0].version = chance.choice(NUMBERS)
            case 5:
                for tensor in made.graph.initializer:
                    tensor.dims.append(chance.choice(NUMBERS))
            case 6:
                for tensor in made.graph.initializer:
                    tensor.data_type = chance.randrange(30)
            case _:
                node.output[0] = chance.choice(WORDS)
    return made.SerializeToString()
