"""Looking at cuts: the table, the plot, the graph, choosing again."""

from __future__ import annotations

import sys
from importlib import util
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import msgspec
import pytest
from msgspec.structs import replace

from din.cli.graph_layout import WIDTH, Box, Flow, laid_out
from din.cli.graph_svg import draw_graph, flow_words, flows_of
from din.domain.cuts import (
    ChosenSlice,
    CutChoice,
    CutTable,
    CutWay,
    NodeAlone,
    OperatorFacts,
    ValueFacts,
)
from din.domain.model import GATEWAY
from din.domain.node import NodeId
from din.domain.views import CutsView, SliceAgainView
from tests.cli.conftest import Run
from tests.client.fake_gateway import FakeGateway, document, model_view

SVG = "{http://www.w3.org/2000/svg}"
WAY = CutWay(
    source="edge-1",
    target="edge-2",
    nbytes=2048,
    ms=12.0,
    latency_ms=4.0,
    mib_per_second=0.25,
    latency_from="measured",
    rate_from="assumed",
    is_relayed=True,
)
WAY_WORDS = (
    "edge-1 -> edge-2: 12.0 ms for 2.0 KiB, by 4.0 ms (measured) and 0.2 MiB/s (assumed), relayed "
    "by the gateway as neither can dial the other"
)
CHOICE = CutChoice(
    objective="latency",
    unit="ms",
    cost=12.0,
    slices=(
        ChosenSlice(first="op0", last="op3", operators=4, node_id=NodeId("a"), node="edge-1",
                    compute_ms=4.0, memory_mib=60, crossing_bytes=2048, is_exact=False),
        ChosenSlice(first="op4", last="op9", operators=6, node_id=NodeId("b"), node="edge-2",
                    compute_ms=8.0, memory_mib=70, is_sensitive=True),
    ),
    alone=NodeAlone(node_id=NodeId("b"), node="edge-2", cost=20.0),
    wins_by=0.4,
    reason="2 slices on edge-1, edge-2, 12.0 ms: 40% less time than the best single node, edge-2 "
    "with 20.0 ms",
    times_from="flops",
    nodes_considered=2,
    blocks=10,
    ways=(WAY,),
)  # fmt: skip


def value(tensor: str, maker: int, *readers: int, nbytes: int = 1024, **more: bool) -> ValueFacts:
    is_exact, is_output = more.get("is_exact", True), not readers
    return ValueFacts(tensor, maker, readers, nbytes, is_exact, is_output, True, False)


def chain_view(count: int = 10, cut: int = 4, name: str = "op{}") -> CutsView:
    operators = tuple(
        OperatorFacts(name.format(place), "Conv" if place % 2 else "Relu", 1, 0, 0)
        for place in range(count)
    )
    values = [value("x", GATEWAY, 0)]
    values += [
        value(f"t{place}", place, place + 1, nbytes=(count - place) * 1024)
        for place in range(count - 1)
    ]
    values.append(value("y", count - 1))
    return CutsView(
        model_id="centerface",
        version="3",
        table=CutTable(source_sha256="a", operators=operators, values=tuple(values)),
        assignment=tuple(int(place >= cut) for place in range(count)),
        slices=(("front", "edge-1"), ("back", "edge-2")),
        operator_ms=(1.0,) * count,
        device="edge-1",
        times_from="flops",
        ways=(WAY,),
    )


def forked_view() -> CutsView:
    operators = tuple(OperatorFacts(name, "Conv", 1, 0, 0) for name in ("stem", "l", "r", "join"))
    values = (
        value("x", GATEWAY, 0),
        value("s", 0, 1, 2),
        value("a", 1, 3, is_exact=False),
        value("b", 2, 3),
        value("y", 3),
    )
    return CutsView(
        model_id="forked",
        version="1",
        table=CutTable(source_sha256="b", operators=operators, values=values),
        assignment=(0, 1, 2, 3),
        slices=(("stem", "n1"), ("left", "n1"), ("right", "n2"), ("join", "")),
        operator_ms=(1.0,) * 4,
        device="n1",
        times_from="profile",
    )


@pytest.fixture
def cuts(fake: FakeGateway) -> FakeGateway:
    fake.routes["GET", "/api/v1/models/centerface/cuts"] = document(chain_view())
    return fake


# inspect --cuts.


def test_every_cut_shows_its_share_of_time_its_bytes_and_its_marks(
    cuts: FakeGateway, run: Run
) -> None:
    done = run("model", "inspect", "centerface", "--cuts")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:1] == ["AFTER"]
    assert lines[4].split() == ["op3", "40.0%", "7.0", "KiB", "1", "best", "cut", "here"]
    assert "estimated from work" in done.stderr
    assert WAY_WORDS in done.stderr
    assert cuts.seen[-1].path == "/api/v1/models/centerface/cuts?version=1"


def test_a_long_graph_is_shortened_around_the_marked_cuts(fake: FakeGateway, run: Run) -> None:
    view = chain_view(300, cut=123)
    fake.routes["GET", "/api/v1/models/centerface/cuts"] = document(view)
    level = msgspec.structs.replace(
        view.table,
        values=tuple(
            msgspec.structs.replace(each, nbytes=5 if each.tensor == "t200" else 9)
            for each in view.table.values
        ),
    )
    flat = msgspec.structs.replace(view, table=level)
    fake.routes["GET", "/api/v1/models/centerface/cuts"] = document(flat)
    done = run("model", "inspect", "centerface", "--cuts")
    assert len(done.stdout.splitlines()) <= 45
    assert "op122 " in done.stdout
    assert "op200 " in done.stdout
    assert "-o wide shows all" in done.stderr
    wide = run("model", "inspect", "centerface", "--cuts", "-o", "wide").stdout
    assert len(wide.splitlines()) == 300
    found = msgspec.json.decode(
        run("model", "inspect", "centerface", "--cuts", "-o", "json").stdout
    )
    assert found["schema"] == "din.model-cuts/1"


# inspect --plot.


def test_the_cuts_are_drawn(cuts: FakeGateway, run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "cuts.png"
    done = run("model", "inspect", "centerface", "--plot", str(picture))
    assert done.exit_code == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_says_what_to_install(
    cuts: FakeGateway, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = util.find_spec
    monkeypatch.setattr(
        "din.cli.cuts.find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    done = run("model", "inspect", "centerface", "--plot", str(tmp_path / "cuts.png"))
    assert done.exit_code == 4
    assert f"hint: {sys.executable} -m pip install matplotlib" in done.stderr
    assert not cuts.seen


def test_a_plot_that_cannot_be_written_says_so(cuts: FakeGateway, run: Run, tmp_path: Path) -> None:
    assert run("model", "inspect", "centerface", "--plot", "cuts.txt").exit_code == 2
    done = run("model", "inspect", "centerface", "--plot", str(tmp_path / "no" / "cuts.png"))
    assert done.exit_code == 2
    assert "cannot be written" in done.stderr


def test_looking_without_a_plot_imports_no_matplotlib(cuts: FakeGateway, run: Run) -> None:
    before = "matplotlib" in sys.modules
    run("model", "inspect", "centerface", "--cuts")
    assert ("matplotlib" in sys.modules) == before


# graph.


def texts(picture: str) -> list[str]:
    """Without what shows when one points at it."""
    found = ElementTree.fromstring(picture).iter(f"{SVG}text")
    return [(each.text or "") + "".join(inner.tail or "" for inner in each) for each in found]


def test_the_graph_has_a_box_for_each_slice_coloured_by_its_node() -> None:
    root = ElementTree.fromstring(draw_graph(forked_view()))
    boxes = [each.find(f"{SVG}rect") for each in root.iter(f"{SVG}g")]
    fills = [each.get("fill") for each in boxes if each is not None]
    assert len(fills) == 4
    assert fills[0] == fills[1] != fills[2]
    words = texts(draw_graph(forked_view()))
    assert "stem on n1" in words
    assert "join on no node yet" in words
    assert words.count("Split") == 3
    assert words.count("Merge") == 3


def test_flows_carry_their_bytes_and_say_where_these_are_estimates() -> None:
    flows = {(each.source, each.target): flow_words(each) for each in flows_of(forked_view())}
    assert flows[0, 1] == "s, 1.0 KiB"
    assert flows[1, 3] == "a, about 1.0 KiB"
    assert flows[GATEWAY, 0] == "x, 1.0 KiB"
    assert flows[3, GATEWAY] == "y, 1.0 KiB"


def test_a_size_of_which_nothing_is_known_is_no_zero_and_no_best_cut(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    view = chain_view()
    values = [
        replace(each, nbytes=0, is_exact=False) if each.maker == 3 else each
        for each in view.table.values
    ]
    unknown = replace(view, table=replace(view.table, values=tuple(values)))
    assert "t3, size not known" in texts(draw_graph(unknown))
    fake.routes["GET", "/api/v1/models/centerface/cuts"] = document(unknown)
    told = run("model", "inspect", "centerface", "--cuts", "--plot", str(tmp_path / "c.png"))
    (row,) = (each for each in told.stdout.splitlines() if each.startswith("op3"))
    assert "not known" in row
    assert "best" not in row
    assert "cut here" in row


def test_a_slice_that_no_node_holds_has_no_colour() -> None:
    root = ElementTree.fromstring(draw_graph(forked_view()))
    boxes = [each.find(f"{SVG}rect") for each in root.iter(f"{SVG}g")]
    fills = [each.get("fill") for each in boxes if each is not None]
    assert fills[3] == "#ffffff"
    assert fills[3] not in fills[:3]


def test_more_nodes_than_colours_differ_by_their_borders() -> None:
    count = 20
    view = chain_view(count, cut=0)
    spread = replace(
        view,
        assignment=tuple(range(count)),
        slices=tuple((f"s{number}", f"n{number}") for number in range(count)),
    )
    root = ElementTree.fromstring(draw_graph(spread))
    boxes = [each.find(f"{SVG}rect") for each in root.iter(f"{SVG}g")]
    looks = {(each.get("fill"), each.get("stroke-dasharray")) for each in boxes if each is not None}
    assert len(looks) == count


def crosses(one: tuple[int, int], other: tuple[int, int], box: Box) -> bool:
    """Whether a line along an axis goes through the inside of a box."""
    (left, right), (top, bottom) = sorted((one[0], other[0])), sorted((one[1], other[1]))
    return left < box.x + WIDTH and right > box.x and top < box.bottom and bottom > box.y


@pytest.mark.parametrize("seed", range(20))
def test_no_box_lies_on_another_and_no_line_goes_through_one(seed: int) -> None:
    random = Random(seed)
    size = random.choice([2, 5, 9, 40, 120])
    reach = random.choice([2, 4, size])
    pairs = {(random.randrange(max(0, target - reach), target), target) for target in range(1, size)
             for _ in range(random.randrange(1, 4))}  # fmt: skip
    flows = [Flow(*pair, ("t",), 1, True) for pair in sorted(pairs)]
    boxes = [Box(number, ("a", "b") * random.randrange(1, 4), "") for number in range(size)]
    layout = laid_out(boxes, [*flows, Flow(GATEWAY, 0, ("x",), 1, True)])
    placed = list(layout.boxes.values())
    assert len(layout.ways) == len(flows)
    for one, other in combinations(placed, 2):
        is_beside = abs(one.x - other.x) >= WIDTH
        assert is_beside or one.bottom < other.y or other.bottom < one.y
    for way in layout.ways:
        assert all(0 < x < layout.width and 0 < y < layout.height for x, y in way.points)
        for start, end in pairwise(way.points if way.is_lane else ()):
            assert 0 in (start[0] - end[0], start[1] - end[1])
            assert not [box for box in placed if crosses(start, end, box)]
        if not way.is_lane:
            start, (_, top), (_, bottom) = way.points
            column = layout.boxes[way.flow.source].column
            assert not [box for box in placed if crosses(start, (start[0], top), box)]
            assert not [box for box in placed if box.column == column
                        and box.y < bottom and box.bottom > top]  # fmt: skip


def test_many_slices_make_columns_and_no_endless_strip() -> None:
    boxes = [Box(number, ("a", "b", "c"), "") for number in range(256)]
    flows = [Flow(number, number + 1, ("t",), 1, True) for number in range(255)]
    layout = laid_out(boxes, flows)
    assert max(layout.height, layout.width) < 7_000


def test_names_of_strangers_are_escaped_and_shortened() -> None:
    evil = '"></svg><script>alert(1)</script>\x00\x1b[31m' + "x" * 300 + "{}"
    picture = draw_graph(chain_view(name=evil.replace("{}", "%s").replace("%s", "{}")))
    ElementTree.fromstring(picture)
    assert "<script" not in picture
    assert "\x1b" not in picture


def test_a_large_graph_stays_readable() -> None:
    picture = draw_graph(chain_view(450, cut=200))
    assert len(texts(picture)) < 40
    assert max(map(len, texts(picture))) < 65
    assert draw_graph(chain_view(450, cut=200)) == picture


def test_the_graph_goes_to_a_file_or_to_standard_output(
    cuts: FakeGateway, run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "graph.svg"
    assert run("model", "graph", "centerface", "-o", str(path)).exit_code == 0
    done = run("model", "graph", "centerface", "-o", "svg")
    assert path.read_text() == done.stdout == draw_graph(chain_view())
    assert run("model", "graph", "centerface", "-o", "graph.gif").exit_code == 2
    assert run("model", "graph", "centerface", "-o", str(tmp_path / "no" / "g.svg")).exit_code == 2


# Choosing.


def test_inspect_shows_why_din_cut_it_so(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/models/centerface"] = document(model_view(choice=CHOICE))
    told = run("model", "inspect", "centerface").stdout
    assert "latency: 2 slices on edge-1, edge-2, 12.0 ms: 40% less time" in told
    assert "edge-1: 4 operators from op0 to op3, 4.0 ms, 60 MiB, about 2.0 KiB on" in told
    assert "trusted nodes only" in told
    assert WAY_WORDS in told


def test_a_throughput_is_told_in_answers_a_second(fake: FakeGateway, run: Run) -> None:
    choice = replace(CHOICE, objective="throughput", cost=4.0)
    view = SliceAgainView(model_id="centerface", version="4", is_changed=False, reason="because",
                          cost_before=5.0, choice=choice)  # fmt: skip
    fake.routes["POST", "/api/v1/models/centerface/slice"] = document(view)
    assert run("model", "slice", "centerface").stdout.split()[-2:] == ["200.0/s", "250.0/s"]


@pytest.mark.parametrize("is_changed", [True, False])
def test_slicing_again_says_what_came_of_it(fake: FakeGateway, run: Run, is_changed: bool) -> None:
    view = SliceAgainView(model_id="centerface", version="4", is_changed=is_changed,
                          reason="because", cost_before=20.0, choice=CHOICE)  # fmt: skip
    fake.routes["POST", "/api/v1/models/centerface/slice"] = document(view)
    done = run("model", "slice", "centerface")
    assert done.exit_code == 0, done.stderr
    assert ("yes" if is_changed else "no") in done.stdout.split()
    assert "because" in done.stderr
    assert ("edge-2: 6 operators" in done.stderr) == is_changed
