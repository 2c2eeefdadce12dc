"""What the processes of a sandbox use together: memory and number from /proc, because a limit of the kernel's is per
process, and the disk space of the folders that they may change.

Where there is no /proc no process is counted, and nothing is ended for it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path

from osmosis.base.light_dataclass import dataclass
from osmosis.base.no_follow import FOLDER, walk

PAGE = os.sysconf("SC_PAGE_SIZE")
MEGABYTE = 1024 * 1024
BLOCK = 512
MOST_FILES = 200_000
"""Below the folders of one sandbox; more is as much as a full disk."""
DISK_EVERY_S = 0.5
DISK_SHARE = 20
"""Counting takes at most one part in so many of the time."""


@dataclass(frozen=True, slots=True)
class ResourceUse:
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


def usage_of(pid: int, *, suspicious_mb: float = 0.0) -> ResourceUse:
    """Sums over the tree of `pid`. What each process has in memory is cheap to ask; only when that sum is above
    `suspicious_mb` are shared pages divided among those that share them, which the kernel counts page by page."""
    pids = tree(pid)
    resident = sum(map(_resident, pids)) / MEGABYTE
    if resident > suspicious_mb:
        resident = sum(map(_proportional, pids)) / MEGABYTE
    return ResourceUse(len(pids), resident)


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


def disk_mb(folders: Iterable[Path]) -> float:
    """What lies below the folders takes on the disk; infinite when it is too many files to count."""
    blocks, left = 0, MOST_FILES
    for root in folders:
        try:
            folder = os.open(root, FOLDER)
        except OSError:
            continue
        try:
            for _, about in walk(folder, left):
                blocks += about.st_blocks
                left -= 1
        finally:
            os.close(folder)
    return math.inf if left <= 0 else blocks * BLOCK / MEGABYTE


class DiskWatch:
    """Looks now and then whether the folders hold more than `most_mb`; None: it never does."""

    def __init__(self, folders: Iterable[Path], most_mb: int | None) -> None:
        self._folders = tuple(folders)
        self._most_mb = most_mb
        self._next = 0.0

    def over(self, *, now: bool = False) -> bool:
        """Whether they do; without `now`, looked at only when it is time again."""
        started = time.monotonic()
        if self._most_mb is None or not self._folders or (started < self._next and not now):
            return False
        found = disk_mb(self._folders) > self._most_mb
        ended = time.monotonic()
        self._next = ended + max(DISK_EVERY_S, DISK_SHARE * (ended - started))
        return found
