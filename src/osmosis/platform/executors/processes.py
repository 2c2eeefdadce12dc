"""Processes on this machine: tell one from a later one with the same id, and end a whole group.

Works on any system; where `/proc` is missing, `ps` answers. Never ends a process whose start time does not match.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path


def start_token(pid: int) -> str | None:
    """A text that changes when the id is used by another process; None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _start_by_ps(pid)
    except (PermissionError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[0] in ("Z", "X"):
        return None
    return fields[19]


def _start_by_ps(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def is_same(pid: int, token: str | None) -> bool:
    """Whether the process that had this start token still runs."""
    return token is not None and start_token(pid) == token


def group_alive(group: int) -> bool:
    """Whether any process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_group(group: int, number: signal.Signals) -> None:
    """Send to the whole group; a group that is gone is fine."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass
