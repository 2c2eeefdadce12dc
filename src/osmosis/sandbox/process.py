import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox import EndedBy
from osmosis.sandbox.command import exceeded_limit
from osmosis.sandbox.launcher import Launch
from osmosis.sandbox.policy import Level, Network, Policy

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
    """Start `argv`, with nothing on its stdin or a pipe, from a thread that outlives it: bubblewrap ends with that
    thread. Raise `SandboxUnavailable` when the level does not work here, `OSError` when it cannot be started."""
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
        output = (
            (await (box.stderr if stderr_apart else box.stdout).read()).decode(errors="replace").strip().splitlines()
        )
        await box.close()
        if output:
            raise SandboxUnavailable(f"the sandbox ended before it began: {output[-1]}", hint=problem.hint) from None
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            await box.close()
        raise
    return box
