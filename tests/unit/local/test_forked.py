"""Workers that are forked off: they answer, end with the run, and are not made where that is not safe."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from osmosis.local.forked import fork_workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forking is safe on Linux alone")

PROGRAM = """
import asyncio, os
from osmosis.local.forked import fork_workers

def work(told, answers):
    while word := os.read(told, 100):
        os.write(answers, b"%d %s" % (os.getpid(), word))
    os._exit(7)

async def main(forked):
    first, second = [await one.opened() for one in forked]
    for one in (first, second):
        one.stdin.write(b"hello")
    said = [(await one.stdout.read(100)).decode() for one in (first, second)]
    assert said == [f"{one.pid} hello" for one in (first, second)], said
    first.stdin.close()  # the second does not hold this pipe open
    assert await asyncio.wait_for(first.wait(), 30) == 7
    second.kill()
    assert await second.wait() == -9 == second.returncode
    second.kill()

assert fork_workers(1, work) == []
unused = fork_workers(2, work)
for one in unused:
    one.close()
    one.close()
forked = fork_workers(2, work)
asyncio.run(main(forked))
for one in forked:
    one.close()
"""


def test_forked_workers_answer_and_end() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=120)


async def test_nothing_is_forked_beside_an_event_loop_or_a_thread() -> None:
    assert fork_workers(2, lambda told, answers: None) == []
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert fork_workers(2, lambda told, answers: None) == []
    over.set()
    thread.join()
