"""Locks on files: between processes, inside one, after a crash."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.base.locks import FileLock, lock_if_free, locked, locked_async

HOLD = """
import sys, pathlib
from osmosis.base.locks import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]))
assert lock.take()
print("held", flush=True)
sys.stdin.read()
"""


def test_two_locks_of_one_file_exclude_each_other_in_one_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with lock_if_free(path) as first, lock_if_free(path) as second:
        assert (first, second) == (True, False)
    with lock_if_free(path) as again:
        assert again


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert not FileLock(path).take()
        holder.kill()
        holder.wait()
    assert path.exists()
    lock = FileLock(path)
    assert lock.take(timeout_s=10)
    lock.release()
    lock.release()


def test_a_lock_is_given_back_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "lock"):
        raise RuntimeError
    assert FileLock(tmp_path / "lock").take()


def test_a_child_does_not_hold_on_to_the_lock(tmp_path: Path) -> None:
    with locked(tmp_path / "lock"):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert FileLock(tmp_path / "lock").take()
    finally:
        child.communicate(b"\n")


async def test_waiting_leaves_the_event_loop_alone_and_says_so_once(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []
    held = FileLock(tmp_path / "lock")
    assert held.take()

    async def second() -> None:
        async with locked_async(tmp_path / "lock", waiting=lambda: told.append("waiting")):
            order.append("second")

    task = asyncio.create_task(second())
    while not told:  # noqa: ASYNC110 - nothing of ours tells
        await asyncio.sleep(0.01)
    order.append("first")
    held.release()
    await task
    assert (told, order) == (["waiting"], ["first", "second"])
