"""Processes, tasks and signals: known by a token, ended with all they started."""

import asyncio
import os
import subprocess
import sys
import time

from osmosis.base.processes import end_tasks, is_group_alive, is_same, iterate_lines, kill_group, kill_tree, start_token

NEST = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


def nest(*, new_session: bool) -> tuple[subprocess.Popen[bytes], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", NEST], stdout=subprocess.PIPE, stdin=subprocess.PIPE, start_new_session=new_session
    )
    return process, int(process.stdout.readline())


def ended(pid: int, token: str | None) -> None:
    """A killed process is gone a moment after the signal."""
    until = time.monotonic() + 10
    while is_same(pid, token):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_token_is_the_same_for_every_reader() -> None:
    token = start_token(os.getpid())
    ask = f"from osmosis.base.processes import start_token; print(start_token({os.getpid()}))"
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == token
    assert is_same(os.getpid(), token)
    assert not is_same(os.getpid(), "1.00")
    assert not is_same(os.getpid(), None)


def test_a_process_that_ended_has_no_token_also_while_nobody_waited_for_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    token = start_token(process.pid)
    assert is_same(process.pid, token)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert start_token(process.pid) is None
    process.communicate()
    assert not is_same(process.pid, token)


def test_a_group_is_ended_as_a_whole() -> None:
    process, child = nest(new_session=True)
    token = start_token(child)
    assert is_group_alive(process.pid)
    kill_group(process.pid)
    process.communicate()
    ended(child, token)
    kill_group(process.pid)  # gone: fine


def test_a_tree_is_ended_where_there_is_no_group() -> None:
    process, child = nest(new_session=False)
    token = start_token(child)
    kill_tree(process.pid)
    process.communicate()
    ended(child, token)
    kill_tree(process.pid)  # gone: fine


async def test_lines_are_read_as_text_and_one_beyond_the_limit_costs_no_other() -> None:
    code = "import sys; sys.stdout.buffer.write(b'one\\r\\n' + b'x' * 5000 + b'\\n\\xff\\nlast')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, limit=1000
    )
    assert process.stdout is not None
    lines = [line async for line in iterate_lines(process.stdout)]
    await process.wait()
    assert lines == ["one", "(a line that is too long was left out)", "\ufffd", "last"]


async def test_no_rest_of_a_line_that_is_too_long_is_shown() -> None:
    code = "import sys, time\nfor _ in range(3): sys.stdout.write('x' * 5000); sys.stdout.flush(); time.sleep(0.1)\n"
    code += "print('half of a secret'); print('next')"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, limit=1000
    )
    assert process.stdout is not None
    lines = [line async for line in iterate_lines(process.stdout)]
    await process.wait()
    assert lines == ["(a line that is too long was left out)", "next"]


HOLDS = """
import os, signal, threading, time
from osmosis.base.processes import on_stop

lock, over = threading.Lock(), threading.Event()

def stop():
    with lock:
        over.set()

on_stop(stop)
for number in (signal.SIGTERM, signal.SIGINT):
    with lock:
        os.kill(os.getpid(), number)
        time.sleep(0.1)
    assert over.wait(30)
    over.clear()
print("ended")
"""


def test_a_signal_waits_for_a_lock_that_the_main_thread_holds() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr


async def test_a_task_that_forgot_its_cancellation_is_cancelled_again() -> None:
    heard = 0

    async def forgetful() -> None:
        nonlocal heard
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            heard += 1
        await asyncio.sleep(3600)

    async def failing() -> None:
        raise ValueError("seen by nobody")

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(failing())]
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks(*tasks, again_s=0.01), 60)
    assert (heard, tasks[0].cancelled(), tasks[1].done()) == (1, True, True)
