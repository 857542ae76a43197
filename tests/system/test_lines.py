"""A log whose reader stands still: nobody waits, losses are counted, the last words are said."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from din.system.lines import LineStream


def test_a_reader_that_stands_still_costs_lines_and_no_time() -> None:
    reader, writer = os.pipe()
    stream = LineStream(writer, characters_max=200_000)
    for number in range(20_000):
        stream.write(f"line {number:06d} {'x' * 80}\n")  # 1.9 MB into a pipe of 64 KiB
    assert not stream.drain(0.01), "the pipe is full, so something is left"
    found, kept, dropped = b"", 0, 0
    while kept + dropped < 20_000:
        found += os.read(reader, 1 << 16)
        *lines, found = found.split(b"\n")
        kept += sum(each.startswith(b"line ") for each in lines)
        dropped += sum(json.loads(each)["count"] for each in lines if each.startswith(b"{"))
    assert kept + dropped == 20_000
    assert dropped > 10_000
    stream.write("and then\n")
    assert stream.drain(10)
    assert os.read(reader, 100).endswith(b"and then\n")
    os.close(reader)
    stream.write("nobody reads this\n")
    assert stream.drain(10)
    stream.write("nor this\n")
    os.close(writer)


SCRIPT = """
import asyncio, sys
from din.system.lines import unblock_stderr
unblock_stderr()
async def main():
    for number in range(50_000):
        sys.stderr.write("x" * 99 + "\\n")
    await asyncio.sleep(0)
    print("the loop went on", flush=True)
asyncio.run(main())
sys.stderr.write("error: the last line\\n")
"""


def test_a_program_whose_reader_stands_still_goes_on_and_ends() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    assert child.stdout.readline() == b"the loop went on\n"
    assert child.wait(60) == 0, "it ends although nobody has read a byte"
    child.stdout.close()
    child.stderr.close()


def test_the_last_line_before_the_end_is_written() -> None:
    script = SCRIPT.replace("50_000", "10")
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert found.stderr.endswith(b"error: the last line\n")
    assert found.stderr.count(b"\n") == 11
