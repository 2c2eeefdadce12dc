"""The commands of a stage (uv, a trainer's setup): each runs in a sandbox, streamed, bounded in time, ended as a whole.
What a job starts is also written down, so that the next attempt can end what a killed job left running. A command that
fails is a result, not an exception.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.base.files import write_json
from osmosis.base.processes import is_same, kill_group, lines_of, start_token
from osmosis.sandbox import Box, Policy, start

TAIL = 200


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. `code` is None when its time was up; `output` is the tail of both streams."""

    code: int | None
    output: str
    stdout: str

    @property
    def ok(self) -> bool:
        return self.code == 0


async def run_command(
    argv: Sequence[str],
    *,
    cwd: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    log: Callable[[str], None] | None = None,
    started: Callable[[int], None] | None = None,
    policy: Policy | None = None,
    beside: Callable[[Box], AbstractAsyncContextManager[None]] | None = None,
) -> CommandResult:
    """Runs `argv` in a sandbox (None: level 0); each line of its output goes to `log`. `started` is told the process;
    `beside` is open while the command runs.

    Raises `OSError` when the program cannot be started at all.
    """
    allowed = replace(policy or Policy(), cwd=cwd, environ=environ)
    box = await start(argv, allowed, stderr_apart=True)
    if started:
        started(box.pid)
    tail: deque[str] = deque(maxlen=TAIL)
    stdout: list[str] = []

    async def read(stream: asyncio.StreamReader, keep: list[str] | None) -> None:
        async for text in lines_of(stream):
            if keep is not None:
                keep.append(text)
            tail.append(text)
            if log:
                log(text)

    code: int | None = None
    try:
        async with beside(box) if beside else nullcontext():
            reading = asyncio.gather(read(box.stdout, stdout), read(box.stderr, None), box.wait())
            code = (await asyncio.wait_for(reading, timeout_s))[2]
    except asyncio.TimeoutError:
        pass
    finally:
        # Also after a normal end: a build backend may have left a child behind.
        await box.close()
    return CommandResult(code=code, output="\n".join(tail), stdout="\n".join(stdout))


PROCESSES_FILE = "processes.json"


class Leftovers:
    """The list in `<work folder>/processes.json`."""

    def __init__(self, work_dir: Path) -> None:
        self._path = work_dir / PROCESSES_FILE
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
