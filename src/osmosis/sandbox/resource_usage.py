"""Measure what the processes of a sandbox use together; without /proc none is counted."""

import contextlib
import math
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.safe_open import FOLDER, walk
from osmosis.sandbox.policy import Limits

PAGE = os.sysconf("SC_PAGE_SIZE")
MEGABYTE = 1024 * 1024
BLOCK = 512
MOST_FILES = 200_000
DISK_EVERY_S = 0.5
DISK_SHARE = 20


@dataclass(frozen=True, slots=True)
class ResourceUse:
    processes: int
    memory_mb: float


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                pids += map(int, file.read().split())
    return pids


def tree(pid: int) -> list[int]:
    pids = [pid]
    for each in pids:
        pids += children(each)
    return pids


def usage_of(pid: int, *, suspicious_mb: float = 0.0) -> ResourceUse:
    """Sum over the tree of `pid`; shared pages are divided, page by page, only above `suspicious_mb`."""
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


def disk_mb(folders: Iterable[Path], most_files: int = MOST_FILES) -> float:
    blocks, left = 0, most_files
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
    """Checks now and then whether the folders hold more than `most_mb`; never with None."""

    def __init__(self, folders: Iterable[Path], most_mb: int | None, *, most_files: int = MOST_FILES) -> None:
        self._folders = tuple(folders)
        self._most_files = most_files
        self._most_mb = most_mb
        self._next = 0.0

    def over(self, *, now: bool = False) -> bool:
        started = time.monotonic()
        if self._most_mb is None or not self._folders or (started < self._next and not now):
            return False
        exceeded = disk_mb(self._folders, self._most_files) > self._most_mb
        ended = time.monotonic()
        self._next = ended + max(DISK_EVERY_S, DISK_SHARE * (ended - started))
        return exceeded


ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MAIN = "osmosis-main"
PERIOD_US = 100_000
GONE_S = 2.0
_VERSION_2 = re.compile(r"^0::(/.*)$", re.MULTILINE)


def find_parent_group(root: Path = ROOT, own: Path = OWN) -> Path | None:
    try:
        match = _VERSION_2.search(own.read_text(encoding="ascii"))
        if match is None or not (root / "cgroup.controllers").exists():
            return None
        path = root / match[1].lstrip("/")
        if path.name == MAIN:
            path = path.parent
        if "memory" not in (path / "cgroup.controllers").read_text(encoding="ascii").split():
            return None
        if not os.access(path / "cgroup.subtree_control", os.W_OK):
            return None
        if "memory" not in (path / "cgroup.subtree_control").read_text(encoding="ascii").split():
            if os.getxattr(path, "user.delegate") != b"1":
                return None
            main = path / MAIN
            main.mkdir(exist_ok=True)
            for pid in (path / "cgroup.procs").read_text(encoding="ascii").split():
                with contextlib.suppress(ProcessLookupError):
                    _write(main / "cgroup.procs", pid)
            available = (path / "cgroup.controllers").read_text(encoding="ascii").split()
            for name in ("memory", "pids", "cpu"):
                if name in available:
                    _write(path / "cgroup.subtree_control", f"+{name}")
    except OSError:
        return None
    return path


class ControlGroup:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, limits: Limits, below: Path | None) -> "ControlGroup | None":
        if below is None or (limits.memory_mb is None and limits.cpus is None):
            return None
        group = cls(below / f"osmosis-{secrets.token_hex(6)}")
        try:
            group.path.mkdir()
            if limits.memory_mb is not None:
                _write(group.path / "memory.max", str(limits.memory_mb * 1024 * 1024))
                for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                    if (group.path / name).exists():
                        _write(group.path / name, value)
            if limits.cpus is not None:
                _write(group.path / "cpu.max", f"{max(1000, int(limits.cpus * PERIOD_US))} {PERIOD_US}")
        except OSError:
            group.close()
            return None
        return group

    def add(self, pid: int) -> None:
        _write(self.path / "cgroup.procs", str(pid))

    @property
    def out_of_memory(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.path / "memory.events").read_text("ascii").splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            _write(self.path / "cgroup.kill", "1")

    def close(self) -> None:
        until = time.monotonic() + GONE_S
        while self.path.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.01)


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
