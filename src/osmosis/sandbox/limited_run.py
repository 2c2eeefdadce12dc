"""A sandboxed command run to its end, within its limits: what it printed and how it ended. For callers that wait.

A command that fails, or that a limit ended, is a result. An exception means that it never ran.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox_command import EndedBy, LimitedResult

from .container import ContainerLaunch
from .launch import Launch
from .policy import Level, Policy
from .usage import usage_of

LOOK_EVERY_S = 0.05
CHUNK = 65536
KEEPERS = 2
"""Processes of ours above the command."""


def run(
    argv: Sequence[str], policy: Policy, *, input: bytes = b"", stop: threading.Event | None = None
) -> LimitedResult:
    """Runs `argv` with `input` on stdin, until it ends or a limit does; everything it started has ended then, too.

    Once `stop` is set, by whichever thread, it is ended. Raises `SandboxUnavailable` when the policy's level does not
    work here, `OSError` when there is no such program.
    """
    began = time.monotonic()
    launch = ContainerLaunch(argv, policy) if policy.level is Level.CONTAINER else Launch(argv, policy)
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(
            launch.argv,
            cwd=launch.cwd,
            env=dict(launch.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=launch.fds,
            start_new_session=True,
        )
        launch.started(process.pid)
        talk = _Talk(process, launch, input, stop)
        try:
            launch.enter()
        except SandboxUnavailable:
            if not (said := talk.last_words()):
                raise
            raise SandboxUnavailable(f"the sandbox ended before it began: {said}") from None
        ended = talk.go(began)
        code = launch.exit_code(process.wait())
        try:
            launch.settle()
        except SandboxUnavailable as problem:
            raise SandboxUnavailable(
                f"{problem.message}: {_last_line(bytes(talk.stderr))}", hint=problem.hint
            ) from None
        if ended is EndedBy.ITSELF and launch.disk.over(now=True):
            ended = EndedBy.DISK
        if ended is EndedBy.ITSELF and launch.out_of_memory:
            ended = EndedBy.MEMORY
        return LimitedResult(code, bytes(talk.stdout), bytes(talk.stderr), ended, time.monotonic() - began)
    finally:
        launch.end()
        if process is not None:
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    stream.close() if stream else None
        launch.close()


class _Talk:
    """Writes the input, reads the output, looks at the limits."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        launch: Launch | ContainerLaunch,
        given: bytes,
        stop: threading.Event | None,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = bytearray(), bytearray()
        self._process = process
        self._launch = launch
        self._given = memoryview(given)
        self._stop = stop
        self._limits = launch.policy.limits
        self._looked = 0.0
        self._streams = (process.stdout, process.stderr)
        self._stdin: IO[bytes] = process.stdin

    def go(self, began: float) -> EndedBy:
        """Until the process has ended and what it printed is read."""
        ended = EndedBy.ITSELF
        with selectors.DefaultSelector() as selector:
            for stream in self._streams:
                selector.register(stream, selectors.EVENT_READ)
            os.set_blocking(self._stdin.fileno(), False)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while self._process.poll() is None:
                if selector.get_map():
                    self._move(selector, LOOK_EVERY_S)
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        self._process.wait(LOOK_EVERY_S)
                if ended is EndedBy.ITSELF and (over := self._over(began)):
                    ended = over
                    self._launch.end()
            # What somebody still holds open is not waited for: everybody has ended.
            while self._move(selector, 0.0):
                pass
        return ended if ended is not EndedBy.ITSELF or not self._said_too_much() else EndedBy.OUTPUT

    def last_words(self) -> str:
        """The last that a process said on stderr that never began."""
        self._launch.end()
        return _last_line(self._process.stderr.read(CHUNK) if self._process.stderr else b"")

    def _move(self, selector: selectors.BaseSelector, wait_s: float) -> bool:
        """Reads and writes what can be now; whether anything was read."""
        moved = False
        for key, _ in selector.select(wait_s):
            stream = key.fileobj
            if stream is self._stdin:
                if not self._write():
                    selector.unregister(stream)
                    self._stdin.close()
                continue
            part = os.read(key.fd, CHUNK)
            moved = moved or bool(part)
            if not part:
                selector.unregister(stream)
                continue
            kept = self.stdout if stream is self._process.stdout else self.stderr
            most = self._limits.output_bytes
            kept += part if most is None else part[: max(0, most + 1 - len(kept))]
        return moved

    def _write(self) -> bool:
        """Whether there is more to write."""
        try:
            if self._given:
                self._given = self._given[os.write(self._stdin.fileno(), self._given[:CHUNK]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._given)

    def _said_too_much(self) -> bool:
        most = self._limits.output_bytes
        return most is not None and max(len(self.stdout), len(self.stderr)) > most

    def _over(self, began: float) -> EndedBy | None:
        """The limit that is passed, if one is."""
        limits, now = self._limits, time.monotonic()
        if self._stop is not None and self._stop.is_set():
            return EndedBy.CALLER
        if limits.wall_s is not None and now - began > limits.wall_s:
            return EndedBy.TIME
        if self._said_too_much():
            return EndedBy.OUTPUT
        if now - self._looked < LOOK_EVERY_S:
            return None
        self._looked = now
        return over(self._launch)


def over(launch: Launch | ContainerLaunch) -> EndedBy | None:
    """Whether the processes of a sandbox use more together than they may."""
    if launch.disk.over():
        return EndedBy.DISK
    limits, root = launch.policy.limits, launch.root
    if not root or (limits.memory_mb is None and limits.processes is None):
        return None
    usage = usage_of(root, suspicious_mb=limits.memory_mb or math.inf)
    if limits.memory_mb is not None and usage.memory_mb > limits.memory_mb:
        return EndedBy.MEMORY
    if limits.processes is not None and usage.processes > limits.processes + KEEPERS:
        return EndedBy.PROCESSES
    return None


def _last_line(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else ""
