import contextlib
import math
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox import EndedBy, LimitedResult
from osmosis.sandbox.container import ContainerLaunch
from osmosis.sandbox.launcher import Launch
from osmosis.sandbox.policy import Level, Policy
from osmosis.sandbox.resource_usage import usage_of

LOOK_EVERY_S = 0.05
LAST_OUTPUT_S = 1.0
CHUNK = 65536
KEEPERS = 2


def run(
    argv: Sequence[str], policy: Policy, *, input: bytes = b"", stop: threading.Event | None = None
) -> LimitedResult:
    """Run `argv` with `input` on stdin, until it and everything it started have ended. Raise `SandboxUnavailable` when
    the policy's level does not work here, `OSError` when there is no such program."""
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
        output = _Output(process, input, policy.limits.output_bytes)
        try:
            launch.enter()
        except SandboxUnavailable:
            launch.end()
            if not (last_words := output.last_line()):
                raise
            raise SandboxUnavailable(f"the sandbox ended before it began: {last_words}") from None
        ended = EndedBy.ITSELF
        while process.poll() is None:
            if output.wait(LOOK_EVERY_S):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_EVERY_S)
            if ended is EndedBy.ITSELF and (exceeded := _exceeded(launch, output, began, stop)):
                ended = exceeded
                launch.end()
        output.wait(LAST_OUTPUT_S)
        code = launch.exit_code(process.wait())
        try:
            launch.settle()
        except SandboxUnavailable as problem:
            raise SandboxUnavailable(f"{problem.message}: {output.last_line()}", hint=problem.hint) from None
        if ended is EndedBy.ITSELF:
            limits = ((output.is_too_long, EndedBy.OUTPUT), (launch.is_disk_full(now=True), EndedBy.DISK))
            exceeded_limits = [*limits, (launch.out_of_memory, EndedBy.MEMORY)]
            ended = next((limit for is_exceeded, limit in exceeded_limits if is_exceeded), ended)
        return LimitedResult(code, bytes(output.stdout), bytes(output.stderr), ended, time.monotonic() - began)
    finally:
        launch.end()
        if process is not None:
            process.wait()
        launch.close()


class _Output:
    """The pipes of a process, each served by a thread; no more is kept than shows that it was too much."""

    def __init__(self, process: subprocess.Popen[bytes], content: bytes, most_bytes: int | None) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = bytearray(), bytearray()
        self._most_bytes = most_bytes
        work = ((self._read, process.stdout, self.stdout), (self._read, process.stderr, self.stderr))
        self._readers = [threading.Thread(target=read, args=arguments, daemon=True) for read, *arguments in work]
        writer = threading.Thread(target=_write, args=(process.stdin, content), daemon=True)
        for thread in (*self._readers, writer):
            thread.start()

    def _read(self, stream: IO[bytes], output: bytearray) -> None:
        with stream:
            while part := os.read(stream.fileno(), CHUNK):
                output += part if self._most_bytes is None else part[: max(0, self._most_bytes + 1 - len(output))]

    def wait(self, seconds: float) -> bool:
        for reader in self._readers:
            reader.join(seconds)
        return not any(reader.is_alive() for reader in self._readers)

    @property
    def is_too_long(self) -> bool:
        return self._most_bytes is not None and max(len(self.stdout), len(self.stderr)) > self._most_bytes

    def last_line(self) -> str:
        self.wait(LAST_OUTPUT_S)
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


def _write(stream: IO[bytes], content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stream:
        stream.write(content)


def _exceeded(
    launch: Launch | ContainerLaunch, output: _Output, began: float, stop: threading.Event | None
) -> EndedBy | None:
    wall_s = launch.policy.limits.wall_s
    if stop is not None and stop.is_set():
        return EndedBy.CALLER
    if wall_s is not None and time.monotonic() - began > wall_s:
        return EndedBy.TIME
    return EndedBy.OUTPUT if output.is_too_long else exceeded_limit(launch)


def exceeded_limit(launch: Launch | ContainerLaunch) -> EndedBy | None:
    if launch.is_disk_full():
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
