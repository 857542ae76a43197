"""What a worker does about engines that misbehave, in processes of their own."""

import subprocess
import sys

PRELUDE = """
import sys, time, threading
import msgspec
from din.domain.tensor import TensorMeta, TensorSpec
from din.system.arena import arena_layout, create_arena, map_arena
from din.system.descriptors import control_pair
from din.wire.worker import Compute, Placed
from din.worker import watchdog
from din.worker.feed import Feed
from din.worker.serve import Server
watchdog.GRACE_MS = 100

class Engine:
    inputs = (TensorSpec("x", "FP32", (4,)),)
    outputs = (TensorSpec("y", "FP32", (4,)),)
    stops = 0
    def run(self, inputs, wanted, targets):
        return act(self, inputs, targets)
    def stop(self):
        self.stops += 1
    def warm(self):
        return True

layout = arena_layout(4096, 4096)
arena = create_arena(layout)
ours, theirs = control_pair()
engine = Engine()
feed = Feed(theirs, map_arena(arena, layout), layout)
dog = watchdog.Watchdog([feed], engine.stop)
server = Server(engine, [feed], dog)
def order(remaining_ms=1000):
    meta = TensorMeta("x", "FP32", (4,), 16)
    ours.send(msgspec.msgpack.encode(Compute(1, (Placed(meta, 0),), (), remaining_ms)))
def show():
    print(msgspec.msgpack.decode(ours.recv(65536))[:4], flush=True)
"""


def play(act: str, story: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + act + story],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_run_that_cannot_be_stopped_takes_the_worker_with_it():
    act = "def act(engine, inputs, targets):\n    time.sleep(30)\n"
    code, _ = play(act, "order(50); server.serve_forever()")
    assert code == 75


def test_an_engine_with_a_fault_is_told_and_ends_the_worker():
    act = "def act(engine, inputs, targets):\n    return {}['no such output']\n"
    story = "order()\ntry:\n    server.serve_forever()\nexcept KeyError:\n    show()\n"
    code, text = play(act, story)
    assert code == 0
    assert "['fail', 1, 'DIN-900'" in text


def test_an_engine_that_breaks_its_word_fails_that_run_alone():
    act = (
        "import numpy\ndef act(engine, inputs, targets):\n    return {'y': numpy.zeros(4, 'i8')}\n"
    )
    code, text = play(act, "order(); server._wait(); show(); order(); server._wait(); show()")
    assert code == 0, text
    assert text.count("'DIN-330'") == 2


def test_an_output_of_more_dimensions_than_an_answer_has_fails_that_run_alone():
    act = (
        "import numpy\ndef act(engine, inputs, targets):\n"
        "    return {'y': numpy.zeros((1,) * 17, 'f4')}\n"
    )
    code, text = play(act, "order(); server._wait(); show(); order(); server._wait(); show()")
    assert code == 0, text
    assert text.count("'DIN-140'") == 2
    assert "17 dimensions" in text


def test_no_memory_for_a_run_is_told():
    act = "def act(engine, inputs, targets):\n    raise MemoryError\n"
    code, text = play(act, "order(); server._wait(); show()")
    assert code == 0, text
    assert "no memory left" in text


def test_strided_outputs_become_row_major():
    """T37."""
    act = (
        "import numpy\ndef act(engine, inputs, targets):\n"
        "    return {'y': numpy.arange(8, dtype='f4')[::2]}\n"
    )
    story = (
        "order(); server._wait(); show()\n"
        "print(numpy.frombuffer(feed.memory, 'f4', 4, layout.input_bytes + 64).tolist())\n"
    )
    code, text = play(act, story)
    assert code == 0, text
    assert "[0.0, 2.0, 4.0, 6.0]" in text


def test_a_feeder_that_talks_nonsense_is_dropped_and_the_owners_end_ends_the_worker():
    act = "def act(engine, inputs, targets):\n    return {}\n"
    code, _ = play(act, "ours.send(b'\\xc1nonsense'); server.serve_forever()")
    assert code == 0
    code, _ = play(act, "ours.close(); server.serve_forever()")
    assert code == 0
