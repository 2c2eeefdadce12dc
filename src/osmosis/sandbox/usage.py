"""What the processes of a sandbox use together: counted from /proc, because a limit of the kernel's is per process.

Where there is no /proc nothing is counted, and nothing is ended for it.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

PAGE = os.sysconf("SC_PAGE_SIZE")
MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a process and all below it."""

    processes: int
    memory_mb: float
    """In main memory; pages that several of them share count once when the sum matters (`usage_of`)."""


def children(pid: int) -> list[int]:
    """The children of all threads of a process, oldest first."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    return found


def tree(pid: int) -> list[int]:
    """A process and everything below it."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def usage_of(pid: int, *, suspicious_mb: float = 0.0) -> Usage:
    """Sums over the tree of `pid`. What each process has in memory is cheap to ask; only when that sum is above
    `suspicious_mb` are shared pages divided among those that share them, which the kernel counts page by page."""
    pids = tree(pid)
    resident = sum(map(_resident, pids)) / MEGABYTE
    if resident > suspicious_mb:
        resident = sum(map(_proportional, pids)) / MEGABYTE
    return Usage(len(pids), resident)


def _resident(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return _resident(pid)
