"""Memory and CPU of all processes of a sandbox together, kept by the kernel: control groups (version 2), where a part
of the tree is ours.

That is so in a systemd service with `Delegate=yes`, and where whoever set the machine up has said so by the folder's
attribute `user.delegate`. Elsewhere there is none, and memory is counted instead (`usage`). Nobody else's processes are
moved: only those of the group that was given to us.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import time
from pathlib import Path

from .policy import Limits

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
MAIN = "osmosis-main"
"""Where our own processes are: a group that has groups below it cannot have processes, too."""
CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
GONE_S = 2.0
_VERSION_2 = re.compile(r"^0::(/.*)$", re.MULTILINE)


def parent(root: Path = ROOT, own: Path = OWN) -> Path | None:
    """The group below which we may make others, with memory among its controllers; None where there is none."""
    try:
        found = _VERSION_2.search(own.read_text(encoding="ascii"))
        if found is None or not (root / "cgroup.controllers").exists():
            return None
        path = root / found[1].lstrip("/")
        if path.name == MAIN:
            path = path.parent
        if "memory" not in (path / "cgroup.controllers").read_text(encoding="ascii").split():
            return None
        if not os.access(path / "cgroup.subtree_control", os.W_OK):
            return None
        if "memory" not in (path / "cgroup.subtree_control").read_text(encoding="ascii").split():
            if not _is_delegated(path):
                return None
            _divide(path)
    except OSError:
        return None
    return path


def _is_delegated(path: Path) -> bool:
    with contextlib.suppress(OSError, AttributeError):
        return os.getxattr(path, "user.delegate") == b"1"
    return False


def _divide(path: Path) -> None:
    """Moves the processes of the group aside, and gives what is below it its controllers."""
    main = path / MAIN
    main.mkdir(exist_ok=True)
    for pid in (path / "cgroup.procs").read_text(encoding="ascii").split():
        with contextlib.suppress(ProcessLookupError):
            _say(main / "cgroup.procs", pid)
    there = (path / "cgroup.controllers").read_text(encoding="ascii").split()
    for name in CONTROLLERS:
        if name in there:
            _say(path / "cgroup.subtree_control", f"+{name}")


class ControlGroup:
    """The group of one sandbox."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, limits: Limits, below: Path | None) -> ControlGroup | None:
        """With these limits; None where the kernel cannot keep them, or none is given that it could."""
        if below is None or (limits.memory_mb is None and limits.cpus is None):
            return None
        made = cls(below / f"osmosis-{secrets.token_hex(6)}")
        try:
            made.path.mkdir()
            if limits.memory_mb is not None:
                _say(made.path / "memory.max", str(limits.memory_mb * 1024 * 1024))
                for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
                    if (made.path / name).exists():
                        _say(made.path / name, value)
            if limits.cpus is not None:
                _say(made.path / "cpu.max", f"{max(1000, int(limits.cpus * PERIOD_US))} {PERIOD_US}")
        except OSError:
            made.close()
            return None
        return made

    def add(self, pid: int) -> None:
        """Puts a process into it, and so all that it starts. Raises OSError when the kernel refuses."""
        _say(self.path / "cgroup.procs", str(pid))

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel ended anything of it because its memory was used up."""
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.path / "memory.events").read_text("ascii").splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def kill(self) -> None:
        """Ends everything in it."""
        with contextlib.suppress(OSError):
            _say(self.path / "cgroup.kill", "1")

    def close(self) -> None:
        """Removes it, once what was in it has ended."""
        until = time.monotonic() + GONE_S
        while self.path.exists() and time.monotonic() < until:
            with contextlib.suppress(OSError):
                self.path.rmdir()
                return
            time.sleep(0.01)


def _say(path: Path, text: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(text)
