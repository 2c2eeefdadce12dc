"""Worker processes that are forked off a command before it loads anybody else's code.

Everything of ours is imported in them, which is most of what a worker that starts afresh takes. Only where that is
safe: on Linux, while no second thread and no event loop exist. Where it is not, and for a worker that takes another's
place, `workers` starts a program of its own. Nothing here says what a worker does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from osmosis.base.light_dataclass import dataclass


@dataclass
class Forked:
    """A worker that waits for its first word, and our ends of the pipes to it."""

    pid: int
    to: int
    """File descriptor that the worker reads."""
    back: int

    async def opened(self) -> ForkedProcess:
        """The same on the event loop, which owns the descriptors from then on."""
        loop = asyncio.get_running_loop()
        out = asyncio.StreamReader()
        to, back, self.to, self.back = self.to, self.back, -1, -1
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(out), os.fdopen(back, "rb", 0))
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(to, "wb", 0))
        return ForkedProcess(self.pid, asyncio.StreamWriter(transport, protocol, None, loop), out)

    def close(self) -> None:
        """Ends one that was never asked for anything; may be called twice, and after `opened`."""
        if self.to < 0:
            return
        os.close(self.to)
        os.close(self.back)
        self.to = self.back = -1
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class ForkedProcess:
    """What is used of an `asyncio.subprocess.Process`, of a process that was forked."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._over: asyncio.Task[int] | None = None

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    async def wait(self) -> int:
        if self._over is None:
            self._over = asyncio.create_task(self._wait())
        return await asyncio.shield(self._over)

    async def _wait(self) -> int:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        _, status = os.waitpid(self.pid, os.WNOHANG)  # noqa: ASYNC222 - it has ended
        self.returncode = os.waitstatus_to_exitcode(status)
        self.stdin.close()
        return self.returncode


def fork_workers(count: int, work: Callable[[int, int], None]) -> list[Forked]:
    """`count` processes that call `work` with the descriptors to read and to write, and end with it.

    None at all for one worker, and where forking is not safe.
    """
    if count < 2 or sys.platform != "linux" or not hasattr(os, "pidfd_open") or threading.active_count() > 1:
        return []
    if asyncio._get_running_loop() is not None:
        return []
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what is still in there would be written by each of them
    forked: list[Forked] = []
    for _ in range(count):
        told, to = os.pipe()
        back, answers = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                for descriptor in (to, back, *(end for other in forked for end in (other.to, other.back))):
                    os.close(descriptor)  # else it would not be noticed when the run ends
                work(told, answers)
            finally:
                os._exit(1)
        os.close(told)
        os.close(answers)
        forked.append(Forked(pid, to, back))
    return forked
