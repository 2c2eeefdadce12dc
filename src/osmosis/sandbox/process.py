"""Sandboxed processes: one that runs to its end, one that lives on, and a reader that parses foreign bytes."""

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from osmosis.base.processes import REFUSED
from osmosis.errors import PlatformError, SandboxUnavailable, TooLarge, from_wire
from osmosis.records.sandbox import EndedBy, LimitedResult
from osmosis.sandbox.container import ContainerLaunch
from osmosis.sandbox.launcher import Launch
from osmosis.sandbox.namespaces import probe
from osmosis.sandbox.policy import Level, Limits, Network, Policy
from osmosis.sandbox.resource_usage import usage_of

POLL_S = 0.05
LAST_OUTPUT_S = 1.0
CHUNK = 65536
KEEPERS = 2


def run(
    argv: Sequence[str], policy: Policy, *, input: bytes = b"", stop: threading.Event | None = None
) -> LimitedResult:
    """Run `argv` until it and everything it started have ended. Raise `SandboxUnavailable`, `OSError`."""
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
            if output.wait(POLL_S):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
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


LOOK_EVERY_S = 0.5
NOTICE_EVERY_S = 0.2
LINE_LIMIT = 1024 * 1024


class Box:
    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self.over_limit: EndedBy | None = None
        self._launch = launch
        self._process = process
        self._ended = asyncio.Event()
        self._tasks = [asyncio.create_task(self._notice())]
        limits, has_tmp = launch.policy.limits, launch.policy.level is not Level.NONE
        if has_tmp or any(
            limit is not None for limit in (limits.memory_mb, limits.processes, limits.disk_mb, limits.wall_s)
        ):
            self._tasks.append(asyncio.create_task(self._watch()))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        assert self._process.stderr is not None
        return self._process.stderr

    @property
    def network(self) -> Network:
        return self._launch.network

    @property
    def listeners(self) -> Mapping[tuple[str, int], socket.socket]:
        return self._launch.listeners

    @property
    def exit_code(self) -> int | None:
        code = self._process.returncode
        return None if code is None else self._launch.exit_code(code)

    def connecting(self, family: int = socket.AF_INET) -> socket.socket:
        return self._launch.connecting(family)

    def ask_to_end(self) -> None:
        self._launch.ask_to_end()

    def end_over(self, limit: EndedBy) -> None:
        self.over_limit = self.over_limit or limit
        self.kill()

    def kill(self) -> None:
        self._launch.end()

    async def wait(self) -> int:
        await self._ended.wait()
        code = self.exit_code
        return -1 if code is None else code

    async def close(self) -> None:
        self.kill()
        await self._ended.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._launch.close)

    async def _notice(self) -> None:
        waiting = asyncio.create_task(self._process.wait())
        while self._process.returncode is None:
            await asyncio.wait({waiting}, timeout=NOTICE_EVERY_S)
        await asyncio.to_thread(self._launch.settle)
        if self.over_limit is None and self._launch.out_of_memory:
            self.over_limit = EndedBy.MEMORY
        self._ended.set()
        waiting.cancel()

    async def _watch(self) -> None:
        wall_s, began = self._launch.policy.limits.wall_s, time.monotonic()
        while not self._ended.is_set():
            late = wall_s is not None and time.monotonic() - began > wall_s
            if limit := EndedBy.TIME if late else await asyncio.to_thread(exceeded_limit, self._launch):
                self.end_over(limit)
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def start(argv: Sequence[str], policy: Policy, *, stderr_apart: bool = False, stdin: bool = False) -> Box:
    """Start `argv` from a thread that outlives it: bubblewrap ends with that thread. Raise as `run` does."""
    starting = asyncio.create_task(_start(argv, policy, stderr_apart=stderr_apart, stdin=stdin))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Cut off in the middle, bubblewrap leaves a half behind that nobody ends, and asyncio waits for its pipes.
        while not starting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({starting})
        if starting.exception() is None:
            starting.result().kill()
            with contextlib.suppress(asyncio.CancelledError):
                await starting.result().close()
        raise


async def _start(argv: Sequence[str], policy: Policy, *, stderr_apart: bool, stdin: bool) -> Box:
    launch = Launch(argv, policy)
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            cwd=launch.cwd,
            env=dict(launch.environ),
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE if stderr_apart else asyncio.subprocess.STDOUT,
            pass_fds=launch.fds,
            start_new_session=True,
            limit=LINE_LIMIT,
        )
    except BaseException:
        launch.close()
        raise
    launch.started(process.pid)
    box = Box(launch, process)
    try:
        await asyncio.to_thread(launch.enter)
    except SandboxUnavailable as problem:
        box.kill()
        stream = box.stderr if stderr_apart else box.stdout
        output = (await stream.read()).decode(errors="replace").strip().splitlines()
        await box.close()
        if output:
            raise SandboxUnavailable(f"the sandbox ended before it began: {output[-1]}", hint=problem.hint) from None
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            await box.close()
        raise
    return box


AT_ONCE = ((30.0, 4), (90.0, 3), (float("inf"), 2))
MEMORY_MB = 1024
OUTPUT_BYTES = 64 * 1024 * 1024

_slots = [(most, threading.BoundedSemaphore(count)) for most, count in AT_ONCE]
_PYTHON = tuple(
    {Path(sys.prefix), Path(sys.base_prefix), Path(os.path.realpath(sys.executable)).parent.parent}
    | {Path(__file__).resolve().parents[2]}
)


class Unreadable(TooLarge):
    http_status = 400


def read_with(
    words: Sequence[str],
    request: Mapping[str, object],
    *,
    what: str,
    files: Sequence[Path] = (),
    write: Sequence[Path] = (),
    seconds: float,
    memory_mb: int = MEMORY_MB,
    address_space_mb: int | None = None,
) -> object:
    """Return the answer of `python -I <words>`; raise the reader's error, or `Unreadable` if a limit ended it."""
    limits = Limits(
        memory_mb=memory_mb,
        address_space_mb=address_space_mb or memory_mb * 4,
        cpu_s=int(seconds) + 1,
        wall_s=seconds * 2,
        processes=64,
        open_files=256,
        output_bytes=OUTPUT_BYTES,
    )
    environ = {"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "2"}
    read = (*_PYTHON, *files)
    policy = Policy(level=probe().level, limits=limits, read=read, write=tuple(write), environ=environ)
    with next(slots for most, slots in _slots if seconds <= most):
        done = run([sys.executable, "-I", *words], policy, input=json.dumps(request).encode())
    if done.ok or done.code == REFUSED:
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            raise PlatformError(f"{what} could not be read: its reader said nothing") from None
        if done.ok:
            return answer
        body = answer if isinstance(answer, dict) else {}
        raise from_wire(int(body.pop("status", 400)), body)
    raise Unreadable(f"{what} cannot be read: {_explain_failure(done, limits)}", hint="make it smaller or simpler")


def _explain_failure(done: LimitedResult, limits: Limits) -> str:
    if done.ended is EndedBy.TIME or done.code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        return f"it takes more than {limits.cpu_s} s"
    if done.ended is EndedBy.OUTPUT:
        return "it holds more than can be shown"
    if done.ended is EndedBy.MEMORY or b"MemoryError" in done.stderr or done.code in (-signal.SIGKILL, 137):
        return f"it takes more than {limits.memory_mb} MB of memory"
    words = done.stderr.decode(errors="replace").strip().splitlines()
    return words[-1][:300] if words else f"its reader ended with code {done.code}"
