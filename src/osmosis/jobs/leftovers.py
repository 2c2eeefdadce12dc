"""The processes a job starts, written down, so that the next attempt can end what a killed job left running.

A process is named by its id and its start time together: an id that was given to somebody else is never touched.
"""

from __future__ import annotations

import json
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.processes import is_same, kill_group, start_token

NAME = "processes.json"


class Leftovers:
    """The list in `<work folder>/processes.json`."""

    def __init__(self, work_dir: Path) -> None:
        self._path = work_dir / NAME
        self._known: dict[int, str] = {}

    def add(self, pid: int | None) -> None:
        """Remembers the process group led by `pid`."""
        if pid is not None and (started := start_token(pid)):
            self._known = {p: s for p, s in self._known.items() if is_same(p, s)}
            self._known[pid] = started
            self._write()

    def end_all(self) -> int:
        """Kills what an earlier attempt left, by process group. Returns how many there were."""
        try:
            listed = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0
        ended = 0
        for pid, started in listed.items():
            if is_same(int(pid), started):
                kill_group(int(pid))
                ended += 1
        self._known = {}
        self._write()
        return ended

    def _write(self) -> None:
        write_json(self._path, self._known)
