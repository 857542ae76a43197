"""`make demo`: real requests answered by several nodes, each step shown and checked.

Starts a gateway and nodes of its own (random cluster name, free ports, state under the output
folder), stops what it started, and ends with exit code 1 when any check fails. `make demo TLS=on`
does the same with an authority, joined nodes, an API key, and mutual TLS on every way.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import shutil
import ssl
import sys
import threading
import time
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import onnxruntime
from demo_network import Network, heard_from, network
from PIL import Image

import din
from din.wire.frame import encode_head
from din.wire.messages import Hello

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache" / "models" / "centerface.onnx"
TYPES = {
    "backbone": "aarch64-ascend310p-cann6.3",
    "neck": "x86_64-cpu-ort1.32",
    "heads": "x86_64-cuda11.8-trt8.6",
}
SIDE = 320
PLAIN_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
FAILED: list[str] = []


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def check(fact: str, *, holds: bool) -> None:
    print(f"   {'ok' if holds else 'FAILED'}: {fact}", flush=True)
    if not holds:
        FAILED.append(fact)


def photos(out: Path) -> tuple[Path, Path]:
    from skimage import data

    face, cat = out / "astronaut.jpg", out / "cat.jpg"
    Image.fromarray(data.astronaut()).save(face, quality=95)
    Image.fromarray(data.chelsea()).save(cat, quality=95)
    return face, cat


def write_config(net: Network, name: str, **changes: Any) -> Path:
    text = re.sub(r"//[^\n]*", "", (ROOT / "examples" / "centerface.json").read_text())
    config = json.loads(re.sub(r",(\s*})", r"\1", text))
    config["onnx_path"] = str(MODEL)
    config.update(changes)
    path = net.state.parent.parent / f"{name}.json"
    path.write_text(json.dumps(config, indent=1))
    return path


def pinned() -> dict[str, Any]:
    return {
        "type": "graph_partition",
        "partition_points": ["404", "474"],
        "slices": [{"name": name, "device_type": kind} for name, kind in TYPES.items()],
    }


def near(box: list[float], wanted: tuple[int, int, int, int]) -> bool:
    return all(abs(seen - want) < 15 for seen, want in zip(box, wanted, strict=True))


def show_nodes(net: Network) -> None:
    how = "let in by tokens" if net.is_tls else "found by multicast"
    step(f"Three nodes, {how}, with what they measure ('-' = no sensor, never 0)")
    for slice_name, device_type in TYPES.items():
        net.start_node(f"edge-{slice_name}", "--device-type", device_type)
    net.wait_ready(3)
    nodes = net.wait_measured()
    print(net.din("node", "list").rstrip())
    print("   These are three declared device types on one processor: placement is real, the")
    print("   hardware is not. A node that declares nothing reports what it detects.")
    check("three nodes are ready", holds=len(nodes) == 3)
    check("memory is measured", holds=all(n["health"]["memory_mib_free"] for n in nodes))


def ask_in_four_ways(net: Network, face: Path, cat: Path) -> None:
    step("One photo in four ways")
    out = face.with_name("astronaut-box.png")
    print(net.din("infer", "centerface", "--input", str(face), "--output", str(out)).rstrip())
    check(f"the box is drawn into {out.name}", holds=out.exists())
    encoded = base64.b64encode(face.read_bytes()).decode()
    asked = {"model_id": "centerface", "input_data": encoded, "timeout_ms": 5000}
    answer = json.loads(net.ask("/infer", json.dumps(asked).encode()))
    boxes = answer["result"]["boxes"]
    check("POST /infer: one face, where it is", holds=len(boxes) == 1
          and near(boxes[0], (182, 58, 270, 178)))  # fmt: skip
    nodes = [entry["node"] for entry in answer["execution_trace"]]
    print("   execution_trace:")
    for entry in answer["execution_trace"]:
        print(f"   {json.dumps(entry)}")
    check(f"three nodes answered together: {', '.join(dict.fromkeys(nodes))}",
          holds=len(set(nodes)) == 3)  # fmt: skip
    with net.client() as client:
        found = client.infer("centerface", cat)
        check("din.Client: a cat is no face", holds=len(found.result["boxes"]) == 0)
        tensor = face_tensor(face)
        heads = client.infer("centerface", {"input.1": tensor})
        check("/v2 with binary tensors gives the model's own heads",
              holds=set(heads.outputs) == {"537", "538", "539", "540"})  # fmt: skip


def face_tensor(face: Path) -> Any:
    pixels = np.asarray(Image.open(face).convert("RGB").resize((SIDE, SIDE)), dtype=np.float32)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def whole_session(*, optimised: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    options.log_severity_level = 3
    import onnx

    model = onnx.load(str(MODEL))
    shape = model.graph.input[0].type.tensor_type.shape
    for dim, size in zip(shape.dim, (1, 3, SIDE, SIDE), strict=True):
        dim.dim_value = size
    del model.graph.value_info[:]
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    # The file lists its weights as inputs too, which forbids ONNX Runtime to fold them: as plain
    # weights the whole model is optimised like the slices are.
    weights = {each.name for each in model.graph.initializer}
    real = [each for each in model.graph.input if each.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(real)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def compare_with_whole(net: Network, face: Path) -> None:
    step("The same numbers as one plain ONNX Runtime session?")
    tensor = face_tensor(face)
    for name, optimised in (("off", False), ("all", True)):
        model = f"centerface-{name}"
        config = write_config(net, model, model_id=model, slicing_strategy=pinned())
        net.din("model", "register", "--config", str(config), "--backend-option",
                f"optimisation={name}", "--backend-option", "threads=1")  # fmt: skip
        session = whole_session(optimised=optimised)
        wanted = dict(zip([o.name for o in session.get_outputs()],
                          session.run(None, {"input.1": tensor}), strict=True))  # fmt: skip
        with net.client() as client:
            given = client.infer(model, {"input.1": tensor}).outputs
        worst = max(float(np.abs(given[key] - wanted[key]).max()) for key in wanted)
        if optimised:
            holds = all(np.allclose(given[k], wanted[k], rtol=1e-4, atol=1e-6) for k in wanted)
            check(f"optimised: within rtol 1e-4 + atol 1e-6 (largest difference {worst:.2g})",
                  holds=holds)  # fmt: skip
        else:
            same = all(given[k].tobytes() == wanted[k].tobytes() for k in wanted)
            check("optimisations off, one thread each: bit by bit", holds=same)


def whole_against_split(net: Network, face: Path) -> None:
    step("Was it worth splitting?")
    unsplit = {"type": "graph_partition", "partition_points": []}
    config = write_config(
        net, "centerface-whole", model_id="centerface-whole", slicing_strategy=unsplit
    )
    net.din("model", "register", "--config", str(config), "--backend-option", "threads=1")
    tensor = face_tensor(face)
    medians = {}
    with net.client() as client:
        for _ in range(2):
            for model in ("centerface-whole", "centerface-all"):
                times = []
                for _ in range(15):
                    start = time.perf_counter()
                    client.infer(model, {"input.1": tensor})
                    times.append((time.perf_counter() - start) * 1000)
                medians[model] = sorted(times)[len(times) // 2]
    whole, split = medians["centerface-whole"], medians["centerface-all"]
    print(f"   whole on one node {whole:.1f} ms, three slices on three nodes {split:.1f} ms.")
    print(
        "   On one processor a split can only add hops: DIN splits because this strategy asks for"
    )
    print("   it. Left to itself it takes one slice, unless no node can hold the model.")
    with net.client() as client:
        plan = client.plan("centerface-all")
    print(f"   {plan.notes[-1]}")
    # Which of the two wins is measured while this machine does other things as well.
    verdict = "DIN would refuse to split: " if plan.is_split_refused else "the split pays: "
    check("DIN says which is faster, with both numbers", holds=plan.notes[-1].startswith(verdict))


def dry_run(net: Network) -> None:
    step("Why these nodes? A dry run touches none")
    asked = {"model_id": "centerface", "input_data": "fake"}
    answer = json.loads(net.ask("/infer?dry-run=true", json.dumps(asked).encode()))
    for entry in answer["execution_plan"]:
        print(f"   {json.dumps({name: entry[name] for name in ('slice', 'node', 'reason')})}")
    print(net.din("plan", "centerface").rstrip())
    check("the plan names a node for every slice", holds=len(answer["execution_plan"]) >= 3)


def survive_a_kill(net: Network, face: Path) -> None:
    step("Pull a plug under load: four clients, one node killed with SIGKILL")
    config = write_config(net, "centerface-free", model_id="centerface-free")
    net.din("model", "register", "--config", str(config))
    good, bad, lock = [0], [], threading.Lock()
    stop = time.monotonic() + 6

    def ask() -> None:
        with net.client(timeout_ms=20_000) as client:
            while time.monotonic() < stop:
                try:
                    boxes = client.infer("centerface-free", face).result["boxes"]
                    right = len(boxes) == 1 and near(boxes[0], (182, 58, 270, 178))
                except din.errors.DinError as error:
                    right = False
                    bad.append(error.message)
                with lock:
                    good[0] += right

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    trace = json.loads(net.din("trace", "show", "last", "-o", "json"))
    victim = trace["execution_trace"][0]["node"]
    net.kill_node(victim)
    print(f"   killed {victim}")
    time.sleep(1.5)
    net.restart_node(victim)
    for thread in threads:
        thread.join()
    check(f"{good[0]} right answers, {len(bad)} lost {bad[:2]}", holds=not bad and good[0] > 0)
    net.wait_ready(3)
    check(f"{victim} is back under its old id", holds=True)


def let_nobody_in(net: Network) -> None:
    step("Authority, certificates, keys: who is let in?")
    print("   Each node joined by its own token. Programs of one machine reach each other by Unix")
    print("   sockets; these were taken away, so everything goes by TLS as between machines.")
    logs = [net.log_of(name).read_text() for name in net.nodes]
    check("every node has its link to the gateway by TLS", holds=all(
        '"is_local":false' in log and '"is_local":true' not in log for log in logs))  # fmt: skip
    beats = re.findall(r'din_heartbeats_total{way="datagram"} (\S+)', net.ask("/metrics").decode())
    check("nodes beat by signed datagrams", holds=float(beats[0]) >= len(net.nodes))
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    http, links = net.port_of_tls(), net.port_of_links()
    check("a stranger hears over TLS that the gateway lives",
          holds=b"200" in heard_from(http, PLAIN_REQUEST, stranger))  # fmt: skip
    check("without a key he hears no more", holds=b" 401 " in heard_from(
        http, PLAIN_REQUEST.replace(b"/v2/health/live", b"/api/v1/nodes"), stranger))  # fmt: skip
    hello = encode_head(Hello(node_id="0" * 16, session=1, lane="urgent", link_id=1))
    check("without a certificate he has no link", holds=not heard_from(links, hello, stranger))
    check("plain text has no answer", holds=b"HTTP" not in heard_from(http, PLAIN_REQUEST))
    stranger.maximum_version = ssl.TLSVersion.TLSv1_2
    check("TLS 1.2 has no answer", holds=not heard_from(http, PLAIN_REQUEST, stranger))
    again = net.din("node", "join", "-", "--name", "thief", "--gateway", net.url, "--state-dir",
                    str(net.state / "thief"), given=net.tokens[0], may_fail=True)  # fmt: skip
    check("a token that was used admits nobody", holds="was used" in again)


def no_node_can_hold_it(out: Path, face: Path, *, is_tls: bool) -> None:
    step("A model that no node can hold, found by unicast: DIN cuts it")
    with network(out / "state" / "small", is_tls=is_tls) as net:
        net.up("--discovery-mode", "unicast")
        for number in range(3):
            net.start_node(f"tiny-{number}", "--memory-mib", "80", "--discovery-mode", "unicast",
                           "--gateway", net.url)  # fmt: skip
        net.wait_ready(3)
        config = write_config(net, "centerface-auto", model_id="centerface-auto", replicas=1,
                              inputs={"input.1": [1, 3, SIDE, SIDE]}, slicing_strategy={},
                              before=None, after=None)  # fmt: skip
        print(net.din("model", "register", "--config", str(config)).rstrip())
        view = json.loads(net.din("model", "inspect", "centerface-auto", "-o", "json"))
        for note in view["notes"]:
            print(f"   {note}")
        parts = [part for part in view["slices"] if part["kind"] == "model"]
        check(f"cut into {len(parts)} slices", holds=len(parts) > 1)
        with net.client() as client:
            answer = client.infer("centerface-auto", {"input.1": face_tensor(face)})
        nodes = {entry.node for entry in answer.execution_trace}
        check(f"answered by {', '.join(sorted(nodes))}", holds=len(nodes) > 1)


def let_din_choose(out: Path, face: Path, *, is_tls: bool) -> None:
    step("Left to itself: DIN chooses where to cut, and says why")
    with network(out / "state" / "choice", is_tls=is_tls) as net:
        net.up("--discovery-mode", "unicast")
        for name, memory_mib in (("roomy", "2000"), ("tiny", "80")):
            net.start_node(name, "--memory-mib", memory_mib, "--discovery-mode", "unicast",
                           "--gateway", net.url)  # fmt: skip
        net.wait_ready(2)
        whole = {}
        for objective in ("latency", "throughput"):
            choice = cuts_chosen(net, objective, {"objective": objective})
            if objective == "latency":
                (whole,) = choice["slices"]
                check("one node is as fast: it refuses to split", holds=choice["is_split_refused"])
        print("   Nodes of one machine share its processor, and DIN reckons with that. Where the")
        print("   first and the last operator may lie can be said, and then it has to split:")
        ends = (("first", "roomy"), ("last", "tiny"))
        ranges = [{"range": whole[end], "nodes": [node]} for end, node in ends]
        cuts_chosen(net, "pinned", {"ranges": ranges})
        picture = out / "centerface-pinned.svg"
        net.din("model", "graph", "centerface-pinned", "-o", str(picture))
        check(f"its slices are drawn into {picture.name}", holds=picture.exists())
        with net.client() as client:
            answer = client.infer("centerface-pinned", {"input.1": face_tensor(face)})
        nodes = {entry.node for entry in answer.execution_trace}
        check(f"a pipeline over {', '.join(sorted(nodes))} answers", holds=len(nodes) > 1)


def cuts_chosen(net: Network, name: str, wishes: dict[str, Any]) -> dict[str, Any]:
    """Register CenterFace with cuts that DIN chooses, show and return the choice."""
    model = f"centerface-{name}"
    fields = {"replicas": 1, "inputs": {"input.1": [1, 3, SIDE, SIDE]}}
    config = write_config(net, model, model_id=model, slicing_strategy={"type": "auto", **wishes},
                          before=None, after=None, **fields)  # fmt: skip
    net.din("model", "register", "--config", str(config))
    choice = json.loads(net.din("model", "inspect", model, "-o", "json"))["choice"]
    print(f"   {name}: {choice['reason']}")
    for part in choice["slices"]:
        span = f"{part['operators']} operators from {part['first']} to {part['last']}"
        print(f"      {part['node']}: {span}, {part['compute_ms']:.1f} ms expected")
    for note in choice.get("notes", ()):
        print(f"      {note}")
    return choice


def answer_and_survive(net: Network, face: Path, cat: Path, *, is_short: bool) -> None:
    step(f"A gateway on {net.url}, cluster {net.cluster}")
    net.up()
    show_nodes(net)
    if net.is_tls:
        let_nobody_in(net)
    step("Register CenterFace: two partition points, three slices, one per device type")
    config = write_config(net, "centerface", slicing_strategy=pinned())
    print(net.din("model", "register", "--config", str(config)).rstrip())
    ask_in_four_ways(net, face, cat)
    step("Where the time went")
    print(net.din("trace", "show", "last").rstrip())
    with net.client() as client:
        relays = client.plan("centerface").relays
    check("tensors go from node to node, not by the gateway", holds=not relays)
    compare_with_whole(net, face)
    if not is_short:
        whole_against_split(net, face)
        dry_run(net)
    survive_a_kill(net, face)
    lines = net.ask("/metrics").decode().splitlines()
    check(f"/metrics: {len([x for x in lines if not x.startswith('#')])} samples",
          holds=any(line.startswith("din_requests_total") for line in lines))  # fmt: skip


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Answer real requests over several nodes.")
    parser.add_argument("--tls", choices=("on", "off"), default="off",
                        help="authority, joined nodes, mutual TLS on every way")  # fmt: skip
    parser.add_argument("--short", action="store_true", help="the main network and its checks only")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-output", metavar="DIR")
    return parser.parse_args()


def make_room(out: Path) -> None:
    if out.exists() and any(out.iterdir()) and not (out / "state" / "main").exists():
        sys.exit(f"error: {out} holds something else\nhint: name a new folder with --output")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def main() -> int:
    arguments = read_arguments()
    is_tls = arguments.tls == "on"
    out = arguments.output.resolve()
    began = time.monotonic()
    make_room(out)
    face, cat = photos(out)
    with network(out / "state" / "main", is_tls=is_tls) as net:
        answer_and_survive(net, face, cat, is_short=arguments.short)
    if not arguments.short:
        no_node_can_hold_it(out, face, is_tls=is_tls)
        let_din_choose(out, face, is_tls=is_tls)
    print(f"\nTook {time.monotonic() - began:.0f} s. Pictures are in {out.name}/.")
    for fact in FAILED:
        print(f"FAILED: {fact}", file=sys.stderr)
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
