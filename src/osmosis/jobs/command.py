"""Runs one command of a stage (git, uv) in its own process group: streamed, bounded in time, killed as a whole.

A command that fails is a result, not an exception; cancelling the caller kills the command and what it started.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.processes import kill_group

TAIL = 200
LINE_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Finished:
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
) -> Finished:
    """Runs `argv`; each line of its output goes to `log`. `started` is told the process group.

    Raises `OSError` when the program cannot be started at all.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=LINE_LIMIT,
    )
    if started:
        started(process.pid)
    tail: deque[str] = deque(maxlen=TAIL)
    stdout: list[str] = []

    async def read(stream: asyncio.StreamReader | None, keep: list[str] | None) -> None:
        while stream is not None:
            try:
                line = await stream.readline()
            except ValueError:  # one line longer than the limit: what is buffered is dropped
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if keep is not None:
                keep.append(text)
            tail.append(text)
            if log:
                log(text)

    code: int | None = None
    try:
        reading = asyncio.gather(read(process.stdout, stdout), read(process.stderr, None), process.wait())
        code = (await asyncio.wait_for(reading, timeout_s))[2]
    except asyncio.TimeoutError:
        pass
    finally:
        # Also after a normal end: a build backend may have left a child behind.
        kill_group(process.pid)
        await process.wait()
    return Finished(code=code, output="\n".join(tail), stdout="\n".join(stdout))
