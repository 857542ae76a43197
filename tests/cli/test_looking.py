"""Commands that look: node, model, plan, trace, config."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from din.cli.infer import _plain
from din.cli.trace import compression_lines, tries_of, waterfall
from din.domain.heat import CoreHeat, HeatView, SensorView
from din.domain.request import Span
from din.domain.result import CONTENT_TYPE, result_of_trace
from din.domain.views import ModelList, PlanView, StuckSlice
from din.wire.result import encode_result
from tests.cli.conftest import Run
from tests.client.fake_gateway import (
    FakeGateway,
    Reply,
    Seen,
    document,
    model_view,
    node_list,
    node_view,
    plan_view,
    slice_view,
    trace,
)

NODES = """\
NAME         STATUS   DEVICE TYPE                 CPU %  MEMORY FREE  TEMP C  QUEUE  SLICES   BEAT
edge-gpu-01  ready    x86_64-cuda11.8-trt8.6         42      3.0 GiB      61      0       1  1.2 s
edge-npu-02  suspect  aarch64-ascend310p-cann6.3      -            -       -      0       0  1.2 s
"""


def test_nodes_are_a_table_in_which_unknown_is_never_zero(run: Run) -> None:
    told = run("node", "list")
    assert told.exit_code == 0
    assert told.stdout == NODES
    assert told.stderr == "edge-npu-02 is suspect: two beats missed\n"


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["node", "list"], "/api/v1/nodes"),
        (["node", "inspect", "edge-gpu-01"], "/api/v1/nodes/edge-gpu-01"),
        (["model", "list"], "/api/v1/models"),
        (["model", "inspect", "centerface"], "/api/v1/models/centerface"),
        (["plan", "centerface"], "/api/v1/plan"),
        (["trace", "list"], "/api/v1/traces"),
        (["trace", "show", "req-8a3f2b1c"], "/api/v1/traces/req-8a3f2b1c"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_json_and_yaml_are_what_http_returns(
    fake: FakeGateway, run: Run, words: list[str], path: str
) -> None:
    body = fake.routes["GET", path](None).body
    assert body is not None
    told = run(*words, "-o", "json")
    assert told.stderr == ""
    assert json.loads(told.stdout) == json.loads(body)
    assert yaml.safe_load(run(*words, "-o", "yaml").stdout) == json.loads(body)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["node", "list"], "edge-gpu-01\nedge-npu-02\n"),
        (["node", "inspect", "edge-gpu-01"], "edge-gpu-01\n"),
        (["model", "list"], "centerface\n"),
        (["model", "slices", "centerface"], "backbone\n"),
        (["plan", "centerface"], "edge-gpu-01\n"),
        (["trace", "list"], "req-8a3f2b1c\nreq-8b000000\n"),
        (["trace", "show", "last"], "req-8a3f2b1c\n"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_names_are_one_a_line(run: Run, words: list[str], names: str) -> None:
    assert run(*words, "-o", "name").stdout == names


def test_wide_adds_columns(run: Run) -> None:
    head = run("node", "list", "-o", "wide").stdout.splitlines()[0]
    assert head.startswith(NODES.splitlines()[0])
    assert "NODE ID" in head
    assert "ADDRESS" in head
    assert "TENANT" in run("model", "list", "-o", "wide").stdout.splitlines()[0]


def test_no_node_says_what_to_do(fake: FakeGateway, run: Run) -> None:
    """The seeds' symptom: `node list` always shows 0 nodes."""
    fake.routes["GET", "/api/v1/nodes"] = document(node_list())
    told = run("node", "list")
    assert told.exit_code == 0
    assert "hint: start one with `din node start" in told.stderr
    assert "din doctor" in told.stderr


def test_inspect_shows_what_the_seeds_look_for(run: Run) -> None:
    told = run("node", "inspect", "edge-gpu-01").stdout
    assert "device_type:        x86_64-cuda11.8-trt8.6\n" in told
    assert "utilization_source: -\n" in told
    assert "temperature:        61.0 C\n" in told
    assert "gpu:                - (not measured)\n" in told
    assert "processor:          Test CPU, 8 cores\n" in told
    assert "labels:             line=4\n" in told


def test_an_unknown_node_is_exit_code_6(run: Run) -> None:
    assert run("node", "inspect", "nope").exit_code == 6


def test_names_with_odd_characters_reach_the_gateway_encoded(fake: FakeGateway, run: Run) -> None:
    """T42."""
    run("model", "inspect", "\u6a21\u578b 50%\U0001f600/a")
    assert fake.seen[0].path == "/api/v1/models/%E6%A8%A1%E5%9E%8B%2050%25%F0%9F%98%80%2Fa"


def test_draining_is_asked_for_by_id(fake: FakeGateway, run: Run) -> None:
    would = run("node", "drain", "edge-gpu-01", "--dry-run")
    assert would.exit_code == 0
    assert "would drain edge-gpu-01: centerface/backbone would move away\n" in would.stderr
    assert fake.seen[-1].path.endswith("/drain?force=false&dry_run=true")
    told = run("node", "drain", "edge-gpu-01")
    assert told.stdout == "edge-gpu-01\n"
    assert "edge-gpu-01 is draining: centerface/backbone to move away, served" in told.stderr
    assert fake.seen[-1].path.endswith("/drain?force=false&dry_run=false")


def test_a_drain_that_is_held_up_says_which_slice_and_why_and_is_exit_code_3(
    fake: FakeGateway, run: Run
) -> None:
    stuck = StuckSlice(slice="centerface/backbone", reasons=("edge-2: memory is 1 MiB, needs 9",))
    view = node_view(status="draining", is_draining=True, stuck=(stuck,))
    fake.routes["POST", f"/api/v1/nodes/{view.node_id}/drain"] = document(view)
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(view))
    told = run("node", "drain", view.name)
    assert told.exit_code == 3
    assert "no other node can take centerface/backbone:\n  edge-2: memory is 1 MiB" in told.stderr
    assert (
        f"error: {view.name} keeps and serves 1 slice: no other node can take that" in told.stderr
    )
    assert "--force" in told.stderr
    would = run("node", "drain", view.name, "--dry-run", "--force")
    assert would.exit_code == 0
    assert "1 slice would be served nowhere after that" in would.stderr
    listed = run("node", "list").stderr
    assert "is draining: holds centerface/backbone; no other node can take centerface/" in listed


def test_a_forced_drain_says_that_nothing_is_served(fake: FakeGateway, run: Run) -> None:
    view = node_view(status="draining", is_draining=True, is_drain_forced=True, slices=())
    fake.routes["POST", f"/api/v1/nodes/{view.node_id}/drain"] = document(view)
    told = run("node", "drain", view.name, "--force")
    assert told.exit_code == 0
    assert f"{view.name} serves nothing any more" in told.stderr


def test_a_drain_is_taken_back(fake: FakeGateway, run: Run) -> None:
    told = run("node", "undrain", "edge-gpu-01")
    assert (told.exit_code, told.stdout) == (0, "edge-gpu-01\n")
    assert told.stderr == "edge-gpu-01 may take slices again\n"
    assert fake.seen[-1].path == "/api/v1/nodes/edge-gpu-01/undrain"


def test_quiet_leaves_only_data(run: Run) -> None:
    told = run("node", "list", "-q")
    assert (told.stdout, told.stderr) == (NODES, "")


MODELS = """\
MODEL       VERSION  STATE  SLICES  NODES
centerface        1  ready       1  edge-gpu-01
"""
SLICES = """\
SLICE  NAME      KIND   OPERATORS    WEIGHTS   MEMORY  DEVICE TYPE  NODES
    0  backbone  model         27  154.1 KiB  153 MiB  any          edge-gpu-01
"""


def test_why_a_node_could_not_load_a_slice_is_told(fake: FakeGateway, run: Run) -> None:
    failed = slice_view(state="failed", reason="artifact 8d41 could not be fetched")
    fake.routes["GET", "/api/v1/models/centerface"] = document(model_view(slices=(failed,)))
    told = run("model", "inspect", "centerface").stderr
    assert (
        told == f"slice {failed.name} on edge-gpu-01 failed: artifact 8d41 could not be fetched\n"
    )


def test_a_replica_that_was_told_to_load_is_shown_as_loading(fake: FakeGateway, run: Run) -> None:
    part = slice_view(state="assigned")
    fake.routes["GET", "/api/v1/models/centerface"] = document(model_view(slices=(part,)))
    told = run("model", "inspect", "centerface").stdout
    assert "edge-gpu-01 (loading)" in told
    assert "assigned" not in told


def test_slices_that_are_stuck_for_the_same_reason_are_told_once(
    fake: FakeGateway, run: Run
) -> None:
    same = ("edge-2: status is lost, needs ready",)
    stuck = tuple(StuckSlice(slice=f"m/{each}", reasons=same) for each in "ab")
    view = node_view(status="draining", is_draining=True, stuck=stuck)
    fake.routes["POST", f"/api/v1/nodes/{view.node_id}/drain"] = document(view)
    told = run("node", "drain", view.name, "--dry-run").stderr
    assert told.startswith(f"no other node can take m/a, m/b:\n  {same[0]}\nwould drain ")
    assert told.endswith("; 2 slices would be kept and served\n")


def test_models_and_their_slices_are_tables(run: Run) -> None:
    assert run("model", "list").stdout == MODELS
    assert run("model", "slices", "centerface").stdout == SLICES
    told = run("model", "inspect", "cen").stdout
    assert "inputs:          input.1 FP32 [1, 3, H, ?]\n" in told
    assert "tenant:          default\n" in told
    assert "outputs:         537 FP32 [...]\n" in told
    assert "cuts:            after slice 0: 404 crosses (1.5 KiB)\n" in told
    assert told.endswith(SLICES)


def test_a_version_that_failed_names_the_one_that_answers(fake: FakeGateway, run: Run) -> None:
    failed = model_view(version="4", state="failed", reason="no\n  why", serving_version="3")
    fake.routes["GET", "/api/v1/models"] = document(ModelList(items=(failed,)))
    assert run("model", "list").stderr == (
        "centerface version 4 is failed: no (more: din model inspect centerface); "
        "version 3 answers meanwhile\n"
    )


def test_a_model_is_found_by_the_start_of_its_id_when_only_one_fits(
    fake: FakeGateway, run: Run
) -> None:
    both = ModelList(items=(model_view(), model_view(model_id="centernet")))
    fake.routes["GET", "/api/v1/models"] = document(both)
    told = run("model", "inspect", "cent")
    assert told.exit_code == 7
    assert "'cent' is the start of 2 model ids" in told.stderr
    assert run("model", "inspect", "centerf").exit_code == 0
    assert run("model", "inspect", "xyz").exit_code == 6


def test_removing_asks_and_never_of_a_pipe(fake: FakeGateway, run: Run) -> None:
    told = run("model", "remove", "centerface")
    assert told.exit_code == 2
    assert "hint: add --yes" in told.stderr
    assert run("model", "remove", "centerface", "--dry-run").exit_code == 0
    assert all(seen.method == "GET" for seen in fake.seen)
    assert run("model", "remove", "centerface", "--yes").stdout == "centerface\n"
    assert fake.seen[-1].method == "DELETE"


def test_removing_takes_no_prefix(run: Run) -> None:
    assert run("model", "remove", "center", "--yes").exit_code == 6


PLAN = """\
SLICE  NAME      NODE         REASON       EXPECTED MS   MEMORY
    0  backbone  edge-gpu-01  lowest_load         18.2  153 MiB

SLICE  NOT ON       BECAUSE      SEEN  NEEDED
    0  edge-npu-02  temperature  89 C  < 75 C
"""


def test_a_plan_shows_who_and_why_not(run: Run) -> None:
    told = run("plan", "centerface")
    assert (told.exit_code, told.stdout) == (0, PLAN)


def test_a_plan_shows_the_replicas_of_a_slice_together(fake: FakeGateway, run: Run) -> None:
    plan = plan_view().plan
    first = plan.placements[0]
    chain = [
        msgspec.structs.replace(first, slice_index=index, slice_name=f"s{index}", node=node)
        for index, node in [(0, "a"), (1, "b"), (0, "c"), (1, "d")]
    ]
    shown = msgspec.structs.replace(plan, placements=tuple(chain))
    fake.routes["GET", "/api/v1/plan"] = document(PlanView(plan=shown))
    assert run("plan", "centerface", "-o", "name").stdout.split() == ["a", "c", "b", "d"]


def test_an_impossible_plan_is_exit_code_3_with_its_reasons(fake: FakeGateway, run: Run) -> None:
    fake.routes["GET", "/api/v1/plan"] = document(plan_view(is_possible=False))
    told = run("plan", "centerface")
    assert told.exit_code == 3
    assert "edge-npu-02  temperature  89 C  < 75 C" in told.stdout
    assert told.stderr.startswith("error: no node can run model 'centerface'\nhint: ")


WATERFALL = """\
req-8a3f2b1c  centerface version 1  completed  22.0 ms  relay
backbone @edge-gpu-01 ----######################################         18.0 ms
gateway                                                        ----       2.0 ms
(# compute  - transfer  . queue  + encode)
"""


def test_a_trace_is_a_waterfall_of_80_columns(run: Run) -> None:
    told = run("trace", "show", "last")
    assert told.stdout == WATERFALL
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "\x1b" not in told.stdout


def test_a_trace_says_what_was_compressed_to_how_much_and_how_long_that_took() -> None:
    def span(**more: int) -> Span:
        return Span(node="edge-1", slice_index=0, phase="head", kind="encode", start_ms=1.0,
                    duration_ms=2.34, **more)  # fmt: skip

    some = span(compressed_bytes=256 * 1024, uncompressed_bytes=1024 * 1024)
    told = list(compression_lines([span(), some]))
    assert told == ["head @edge-1 compressed 1.0 MiB to 256.0 KiB (25%), 2.3 ms"]


def test_a_waterfall_of_long_names_keeps_to_its_width() -> None:
    long = trace().spans[1]
    name = "n" * 63
    spans = [Span(node=name, slice_index=i, phase="p" * 40, kind="compute", start_ms=i,
                  duration_ms=1) for i in range(5)]  # fmt: skip
    for width in (40, 80, 200):
        lines = waterfall([long, *spans], width, is_coloured=False)
        assert max(map(len, lines)) <= max(width, 60)
    assert "\x1b[32m" in waterfall(spans, 80, is_coloured=True)[0]
    assert waterfall([], 80, is_coloured=False) == ["no span was measured"]


def test_retries_are_told_with_their_reason(fake: FakeGateway, run: Run) -> None:
    from din.domain.request import AttemptRecord

    tries = (
        AttemptRecord(attempt=1, nodes=("a",), outcome="node a: link closed", duration_ms=5),
        AttemptRecord(attempt=2, nodes=("b",), outcome="completed", duration_ms=9),
    )
    fake.routes["GET", "/api/v1/traces/req-8a3f2b1c"] = document(trace(attempts=tries))
    told = run("trace", "show", "req-8a3f2b1c").stdout
    assert "try 1: node a: link closed on a (5.0 ms)" in told


def test_shards_that_came_through_at_once_are_no_retries(fake: FakeGateway, run: Run) -> None:
    from din.domain.request import AttemptRecord

    shards = tuple(
        AttemptRecord(attempt=1, nodes=(node,), outcome="completed", duration_ms=5)
        for node in ("a", "b")
    )
    shown = trace(attempts=shards, path="shards")
    fake.routes["GET", "/api/v1/traces/req-8a3f2b1c"] = document(shown)
    assert "try 1" not in run("trace", "show", "req-8a3f2b1c").stdout
    assert tries_of(shown) == 1


def test_a_failed_request_tells_why(fake: FakeGateway, run: Run) -> None:
    failed = trace(status="failed", spans=(), error="DIN-300: model 'm' is placing")
    fake.routes["GET", "/api/v1/traces/req-8a3f2b1c"] = document(failed)
    told = run("trace", "show", "req-8a3f2b1c").stdout.splitlines()
    assert told[1:] == ["DIN-300: model 'm' is placing", "no span was measured"]


def test_a_trace_is_found_by_the_start_of_its_id(run: Run) -> None:
    assert run("trace", "show", "req-8a", "-o", "name").stdout == "req-8a3f2b1c\n"
    assert run("trace", "show", "req-8").exit_code == 7
    assert run("trace", "show", "zzz").exit_code == 6


def test_the_settings_show_where_each_value_comes_from(run: Run, home: Path) -> None:
    (home / ".config" / "din").mkdir(parents=True)
    (home / ".config" / "din" / "config.yaml").write_text("cluster: line-4\n")
    told = run("config", "show", "--effective", "--origin", "--section", "gateway").stdout
    lines: list[Any] = [line.split() for line in told.splitlines()]
    by_key = {line[0]: line for line in lines}
    assert by_key["gateway.cluster"][1] == "line-4"
    assert by_key["gateway.cluster"][-1].endswith("config.yaml")
    assert by_key["gateway.port"][1:] == ["8000", "default"]
    items = json.loads(run("config", "show", "-o", "json").stdout)["items"]
    assert {each["section"] for each in items} == {"gateway", "node", "client"}
    values = {f"{each['section']}.{each['key']}": each["value"] for each in items}
    assert values["gateway.state_dir"] == str(home / ".local/state/din")
    assert values["node.state_dir"] == f"{home}/.local/state/din/nodes/{values['node.name']}"
    names = run("config", "show", "-o", "name").stdout.splitlines()
    assert "node.port" in names
    assert all(run("config", "explain", name).exit_code == 0 for name in names)


def test_a_setting_is_explained(run: Run) -> None:
    told = run("config", "explain", "--", "node-heartbeat-jitter-ms")
    assert told.exit_code == 0
    assert "meaning:  spread of beats; interval x 0.15" in told.stdout
    assert "variable: DIN_GATEWAY_NODE_HEARTBEAT_JITTER_MS" in told.stdout
    missing = run("config", "explain", "jiter")
    assert missing.exit_code == 6


def test_a_bad_settings_file_names_file_and_key(run: Run, home: Path) -> None:
    (home / ".config" / "din").mkdir(parents=True)
    (home / ".config" / "din" / "config.yaml").write_text("clustr: x\n")
    told = run("config", "show")
    assert told.exit_code == 2
    assert "unknown key 'clustr'" in told.stderr
    assert "did you mean 'cluster'?" in told.stderr


def test_watching_shows_it_again(
    fake: FakeGateway, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []

    def pause(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("din.cli.display.time.sleep", pause)
    fake.routes["GET", "/api/v1/nodes"] = document(node_list(node_view()))
    assert run("node", "list", "--watch", "-o", "name").stdout == "edge-gpu-01\n" * 3
    assert rounds == [2.0, 2.0, 2.0]


def test_what_is_no_number_is_null_in_the_json_of_a_result() -> None:
    result = {
        "y": np.array([[np.nan, -np.inf], [0.5, np.inf]], np.float32),
        "boxes": [[1.0, float("nan")]],
        "text": b"caf\xc3\xa9",
    }
    text = json.dumps(_plain(result), allow_nan=False, ensure_ascii=False)
    assert text == '{"y": [[null, null], [0.5, null]], "boxes": [[1.0, null]], "text": "café"}'


def test_a_trace_is_kept_and_shown_again_without_a_gateway(
    fake: FakeGateway, run: Run, tmp_path: Path
) -> None:
    saved = b"".join(encode_result(result_of_trace(trace())))
    plain = document(trace())
    path = "/api/v1/traces/req-8a3f2b1c"

    def answer(seen: Seen) -> Reply:
        if seen.headers.get("accept") != CONTENT_TYPE:
            return plain(seen)
        return Reply(200, saved, {"content-type": CONTENT_TYPE})

    fake.routes["GET", path] = answer
    kept = str(tmp_path / "slow.dinr")
    live = run("trace", "show", "req-8a3f2b1c", "--save", kept)
    assert live.exit_code == 0, live.stderr
    assert f"wrote {kept}" in live.stderr
    count = len(fake.seen)
    assert run("trace", "show", kept).stdout == live.stdout
    told = json.loads(run("trace", "show", kept, "-o", "json").stdout)
    assert told["request_id"] == "req-8a3f2b1c"
    assert len(fake.seen) == count
    for words, said in (
        (("last", "--save", str(tmp_path / "slow.json")), ".dinr"),
        (("last", "--save", str(tmp_path / "none" / "slow.dinr")), "cannot be written"),
        ((str(tmp_path / "none.dinr"),), "cannot be read"),
    ):
        told = run("trace", "show", *words)
        assert told.exit_code != 0
        assert said in told.stderr
    fake.routes["GET", path] = plain
    assert "older than this" in run("trace", "show", "last", "--save", kept).stderr


HEAT = """\
CORE  BUSY                   %  MEMORY %  LONGEST RUN US  PATTERN
cpu0  ##################..  92        81           42000  bandwidth-bound
cpu1  -                      -         -           42000
"""
HEAT_WORDS = """\
edge-1: 104 ms, 3 runs ended, the longest 2.5 times its slice's mean
not measured: percent: core 1 came meanwhile
sensor temperature: /sys/class/thermal/thermal_zone0/temp, 85.0, 120 ms ago, 7200 s without any \
change
sensor power: nothing found, 3 failed reads, 9000 ms without an answer
"""


def test_heat_is_drawn_and_what_is_not_measured_says_why(fake: FakeGateway, run: Run) -> None:
    view = HeatView(
        node="edge-1",
        window_ms=104,
        core_mask="0x3",
        runs=3,
        latency_ratio_peak=2.5,
        cores=(
            CoreHeat(core=0, percent=92.0, latency_us_peak=42000.0, bandwidth_percent=81.0,
                     pattern="bandwidth-bound"),
            CoreHeat(core=1, latency_us_peak=42000.0),
        ),
        unknown={"percent": "core 1 came meanwhile"},
        sensors=(
            SensorView(name="temperature", source="/sys/class/thermal/thermal_zone0/temp",
                       value=85.0, age_ms=120, unchanged_ms=7_200_000),
            SensorView(name="power", failures=3, hangs_ms=9000),
        ),
    )  # fmt: skip
    fake.routes["GET", "/api/v1/nodes/edge-1/heat"] = document(view)
    told = run("node", "heat", "edge-1", "--core-mask", "0x3")
    assert fake.seen[-1].path == "/api/v1/nodes/edge-1/heat?window_ms=100&core_mask=0x3"
    assert told.stdout == HEAT
    assert told.stderr == HEAT_WORDS
    told = run("node", "heat", "edge-1", "-o", "json")
    assert json.loads(told.stdout)["cores"][1]["percent"] is None
    assert told.stderr == ""
    assert run("node", "heat", "edge-1", "--core-mask", "cpu0").exit_code == 2
