"""`start`: a process that lives on beside its caller, what the two say to each other, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from osmosis.records.sandbox import EndedBy
from osmosis.sandbox import Level, Limits, Network, Policy, start
from osmosis.sandbox.namespaces import python_folders
from osmosis.sandbox.policy import TMP_FILES
from support.waiting import until

PYTHON = Path(sys.executable)
GATE = ("127.0.0.1", 9017)
TALKS = """
import socket
server = socket.create_server(("127.0.0.1", 7017))
caller = socket.create_connection(("127.0.0.1", 9017), 5)
caller.sendall(b"from inside")
inside, _ = server.accept()
print(inside.recv(100).decode(), flush=True)
inside.recv(1)
"""


async def test_caller_and_sandbox_reach_each_other_in_its_own_network(level1: Level) -> None:
    policy = Policy(level=level1, listen=(GATE,), read=python_folders(PYTHON))
    box = await start([str(PYTHON), "-I", "-S", "-c", TALKS], policy)
    try:
        assert box.network is Network.NONE
        loop = asyncio.get_running_loop()
        listener = box.listeners[GATE]
        listener.setblocking(False)
        accepted, _ = await asyncio.wait_for(loop.sock_accept(listener), 10)
        with accepted, box.connecting() as calling:
            assert await loop.sock_recv(accepted, 100) == b"from inside"
            calling.setblocking(False)
            await loop.sock_connect(calling, ("127.0.0.1", 7017))
            await loop.sock_sendall(calling, b"from outside")
            assert await asyncio.wait_for(box.stdout.readline(), 10) == b"from outside\n"
        assert await asyncio.wait_for(box.wait(), 10) == 0
    finally:
        await box.close()


async def test_asked_to_end_it_may_say_goodbye(level: Level) -> None:
    box = await start(["/bin/sh", "-c", "trap 'echo goodbye; exit 7' TERM; echo ready; sleep 60 & wait"], policy(level))
    assert await asyncio.wait_for(box.stdout.readline(), 10) == b"ready\n"
    box.ask_to_end()
    assert await asyncio.wait_for(box.wait(), 10) == 7
    assert await box.stdout.read() == b"goodbye\n"
    await box.close()


async def test_killed_it_is_gone_with_what_it_started(level: Level) -> None:
    script = f"trap '' TERM; setsid sleep {61 + level} & echo ready; wait"
    box = await start(["/bin/sh", "-c", script], policy(level))
    await asyncio.wait_for(box.stdout.readline(), 10)
    below = appeared(f"sleep\0{61 + level}\0")
    box.kill()
    assert await asyncio.wait_for(box.wait(), 10) == -signal.SIGKILL
    await box.close()
    assert not [pid for pid in below if pid in processes(f"sleep\0{61 + level}\0")]


async def test_killed_from_outside_it_says_by_which_signal(level: Level) -> None:
    box = await start(["/bin/sleep", f"{41 + level}"], policy(level))
    launcher = psutil.Process(box.pid)
    sleeps = f"/bin/sleep {41 + level}".split()
    await until(lambda: sleeps in [process.cmdline() for process in (launcher, *launcher.children(recursive=True))])
    for process in launcher.children() or [launcher]:  # of a PID namespace the first process, on which all others hang
        process.kill()
    assert await asyncio.wait_for(box.wait(), 10) == -signal.SIGKILL
    await box.close()


async def test_a_limit_that_is_passed_is_named(level: Level) -> None:
    code = "import time; kept = bytearray(b'x') * 300_000_000; time.sleep(60)"
    limited = Policy(level=level, limits=Limits(memory_mb=150), read=python_folders(PYTHON))
    box = await start([str(PYTHON), "-I", "-S", "-c", code], limited)
    assert await asyncio.wait_for(box.wait(), 20) == -signal.SIGKILL
    assert box.over_limit is EndedBy.MEMORY
    await box.close()


STARTER = """
import asyncio, sys
from osmosis.sandbox import Level, Policy, start
async def main():
    script = f"setsid sleep 7{sys.argv[1]} & echo ready; wait"
    box = await start(["/bin/sh", "-c", script], Policy(level=Level(int(sys.argv[1]))))
    print((await box.stdout.readline()).decode(), end="", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_it_does_not_outlive_a_caller_that_is_killed(level: Level) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(level.value)], stdout=subprocess.PIPE)
    assert starter.stdout is not None
    assert starter.stdout.readline() == b"ready\n"
    words = f"sleep\x007{level.value}\0"
    below = appeared(words)
    starter.kill()
    starter.wait()
    starter.stdout.close()

    deadline = time.monotonic() + 10
    while set(below) & set(processes(words)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(below) & set(processes(words))


async def test_descriptors_are_given_back(level: Level) -> None:
    box = await start(["/bin/true"], policy(level))
    await box.close()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        box = await start(["/bin/true"], Policy(level=level, listen=(GATE,)))
        await box.close()
    await asyncio.sleep(0.1)
    assert len(os.listdir("/proc/self/fd")) <= len(before) + 1


async def test_a_program_that_is_not_there(level: Level) -> None:
    box = await start(["/no/such/program"], policy(level))
    assert await asyncio.wait_for(box.wait(), 10) != 0
    assert b"/no/such/program" in await box.stdout.read()
    await box.close()


def policy(level: Level) -> Policy:
    return Policy(level=level, environ={"PATH": "/usr/bin:/bin"})


def appeared(words: str) -> list[int]:
    deadline = time.monotonic() + 10
    while not (found := processes(words)):
        assert time.monotonic() < deadline, "it never started"
        time.sleep(0.02)
    return found


def processes(words: str) -> list[int]:
    """Of this machine, those with these words in their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if words.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


async def test_a_folder_that_is_filled_ends_it(level: Level, tmp_path: Path) -> None:
    script = f"head -c 20000000 /dev/zero > {tmp_path}/big; sleep 60"
    box = await start(["/bin/sh", "-c", script], Policy(level=level, write=(tmp_path,), limits=Limits(disk_mb=8)))
    assert await asyncio.wait_for(box.wait(), 30) == -signal.SIGKILL
    assert box.over_limit is EndedBy.DISK
    await box.close()


@pytest.mark.slow
async def test_a_tmp_of_too_many_files_ends_it(level: Level) -> None:
    """Empty ones take no memory and no space, but inodes of the machine."""
    if level is Level.NONE:
        pytest.skip("its /tmp is the machine's")
    script = f"""
import os, time
for number in range({TMP_FILES + 100}):
    os.close(os.open(f"{{os.environ['TMPDIR']}}/{{number}}", os.O_CREAT | os.O_WRONLY))
time.sleep(60)
"""
    box = await start([str(PYTHON), "-I", "-S", "-c", script], Policy(level=level, read=python_folders(PYTHON)))
    assert await asyncio.wait_for(box.wait(), 120) == -signal.SIGKILL
    assert box.over_limit is EndedBy.DISK
    await box.close()


async def test_its_time_ends_it(level: Level) -> None:
    box = await start(["/bin/sleep", "60"], Policy(level=level, limits=Limits(wall_s=0.5)))
    assert await asyncio.wait_for(box.wait(), 30) == -signal.SIGKILL
    assert box.over_limit is EndedBy.TIME
    await box.close()


async def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing(level1: Level) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    for millisecond in range(0, 60, 3):
        starting = asyncio.create_task(start(["/bin/sh", "-c", "sleep 60", mark], policy(level1)))
        await asyncio.sleep(millisecond / 1000)
        starting.cancel()
        await asyncio.wait_for(asyncio.wait({starting}), 20)
        if not starting.cancelled():
            await starting.result().close()
    assert processes(mark) == []
