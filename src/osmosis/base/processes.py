"""Processes on this machine: tell one from a later one with the same id, and end a group or a tree of them.

A process is named by its id and its start together, so an id that was given to somebody else is never signalled.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

PR_SET_DUMPABLE = 4


def start_token(pid: int) -> str | None:
    """A text that changes when the id is used by another process; None when there is no such process, or a dead one
    that nobody has waited for."""
    if sys.platform == "linux":
        # Linux counts from the start of the machine; psutil would add when that was by today's clock, which may be set
        # meanwhile: a token is compared days later, by another process.
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        state, ticks = stat[0], int(stat[19])  # fields 3 and 22 of proc(5)
        return None if state in b"ZXx" else f"{ticks / os.sysconf('SC_CLK_TCK'):.2f}"
    import psutil  # a compiled library, which most commands never need

    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"{process.create_time():.2f}"
    except psutil.Error:
        return None


def is_same(pid: int, token: str | None) -> bool:
    """Whether the process that had this start token still runs."""
    return token is not None and start_token(pid) == token


def keep_to_itself() -> None:
    """Other processes of the same user can no longer read this one's memory, environment and descriptors (Linux; the
    administrator still can)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def with_words(word: str) -> list[tuple[int, list[str]]]:
    """Id and command line of each process of this user that has `word` in it."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if word in words:
                found.append((process.pid, words))
    return found


def group_alive(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: int) -> None:
    """Sends to the whole group; a group that is gone is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_group(group: int) -> None:
    """Ends the group at once; a group that is gone is fine."""
    signal_group(group, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Ends a process that leads no group, and what it started."""
    import psutil

    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                each.kill()


_TOO_LONG = "(a line that is too long was left out)"


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """What a process prints, line by line, without the newline; a line beyond the stream's limit is left out whole:
    its rest could begin within a secret, which nobody would recognize."""
    cut = False
    while True:
        try:
            line = await stream.readline()
        except ValueError as error:  # what is buffered of it is dropped, with its end if that was there
            cut = "is found" not in str(error)
            if not cut:
                yield _TOO_LONG
            continue
        if cut:
            cut = False
            yield _TOO_LONG
            continue
        if not line:
            return
        yield line.decode("utf-8", "replace").rstrip("\r\n")


def limit_files(pid: int, most: int) -> None:
    """No file that this process, or one that it starts from now on, writes may be larger than `most` bytes. Linux."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most, most))
