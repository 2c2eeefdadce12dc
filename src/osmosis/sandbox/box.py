"""A sandboxed process that lives on beside its caller, in an event loop: a rollout server.

Its output is a stream that the caller reads. It is ended as a whole: politely first, then with all it started, and
it does not outlive the process that started it, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis.errors import SandboxUnavailable
from osmosis.records.sandbox_command import EndedBy

from .launch import Launch
from .limited_run import over
from .policy import Network, Policy
from .usage import tree

LOOK_EVERY_S = 0.5
NOTICE_EVERY_S = 0.2
LINE_LIMIT = 1024 * 1024


class Box:
    """Made by `start`. `over_limit` says which limit ended it."""

    def __init__(self, launch: Launch, process: asyncio.subprocess.Process) -> None:
        self.over_limit: EndedBy | None = None
        self._launch = launch
        self._process = process
        self._ended = asyncio.Event()
        self._running = asyncio.Event()
        self._running.set()
        self._tasks = [asyncio.create_task(self._notice())]
        limits = launch.policy.limits
        if any(limit is not None for limit in (limits.memory_mb, limits.processes, limits.disk_mb, limits.wall_s)):
            self._tasks.append(asyncio.create_task(self._watch()))

    @property
    def pid(self) -> int:
        """The process to be remembered: everything of the sandbox ends with it."""
        return self._process.pid

    @property
    def stdout(self) -> asyncio.StreamReader:
        """What it prints, on either stream unless `start` was to keep them apart."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Its stderr, when `start` was to keep the two apart."""
        assert self._process.stderr is not None
        return self._process.stderr

    @property
    def network(self) -> Network:
        """What it really has: `shared` at level 0, and where nothing here can do better."""
        return self._launch.network

    @property
    def listeners(self) -> Mapping[tuple[str, int], socket.socket]:
        """For each of `Policy.listen` the socket, where the network is its own; the box closes them at its end."""
        return self._launch.listeners

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        code = self._process.returncode
        return None if code is None else self._launch.exit_code(code)

    def connecting(self, family: int = socket.AF_INET) -> socket.socket:
        """A TCP socket, not connected, that reaches what listens inside at 127.0.0.1."""
        return self._launch.connecting(family)

    async def freeze(self) -> None:
        """Stops all its processes until `thaw`: they use no processor, and none can be started."""
        self._running.clear()
        stopped: set[int] = set()
        while new := set(tree(self._launch.root)[1:]) - stopped:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new
            await asyncio.sleep(0)

    def thaw(self, orders: bytes, *, moved: Mapping[Path, Path] | None = None) -> None:
        """Lets it go on, with `orders` on its stdin, which then ends. `moved`: new names, outside, of its folders."""
        self._launch.moved(moved or {})
        for pid in tree(self._launch.root)[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self._running.set()
        assert self._process.stdin is not None
        self._process.stdin.write(orders)
        self._process.stdin.close()

    def ask_to_end(self) -> None:
        """SIGTERM to the command."""
        self._launch.ask_to_end()

    def end_over(self, limit: EndedBy) -> None:
        """Ends it because it met a limit that somebody else keeps, such as of what it prints."""
        self.over_limit = self.over_limit or limit
        self.kill()

    def kill(self) -> None:
        """Ends it with everything it started; `wait` returns soon."""
        self._launch.end()

    async def wait(self) -> int:
        """Its exit code, once it has ended, whoever ended it."""
        await self._ended.wait()
        code = self.exit_code
        return -1 if code is None else code

    async def close(self) -> None:
        """Ends it and gives back what it held."""
        self.kill()
        await self._ended.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._launch.close)

    async def _notice(self) -> None:
        """In some Python versions `wait` also waits for every child that holds the output open."""
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
            await self._running.wait()
            late = wall_s is not None and time.monotonic() - began > wall_s
            if found := EndedBy.TIME if late else await asyncio.to_thread(over, self._launch):
                self.end_over(found)
                return
            await asyncio.sleep(LOOK_EVERY_S)


async def start(argv: Sequence[str], policy: Policy, *, stderr_apart: bool = False, takes_orders: bool = False) -> Box:
    """Starts `argv`, with nothing on its stdin, or with `takes_orders` what `Box.thaw` gives.

    Raises `SandboxUnavailable` when the level does not work here, `OSError` when it cannot be started.

    To be called in the thread that outlives the sandbox: bubblewrap ends with the thread that started it. A call that
    is cancelled ends what it has started before it returns.
    """
    starting = asyncio.create_task(_start(argv, policy, stderr_apart=stderr_apart, takes_orders=takes_orders))
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


async def _start(argv: Sequence[str], policy: Policy, *, stderr_apart: bool, takes_orders: bool) -> Box:
    launch = Launch(argv, policy)
    try:
        process = await asyncio.create_subprocess_exec(
            *launch.argv,
            cwd=launch.cwd,
            env=dict(launch.environ),
            stdin=asyncio.subprocess.PIPE if takes_orders else asyncio.subprocess.DEVNULL,
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
        said = (await (box.stderr if stderr_apart else box.stdout).read()).decode(errors="replace").strip().splitlines()
        await box.close()
        if said:
            raise SandboxUnavailable(f"the sandbox ended before it began: {said[-1]}", hint=problem.hint) from None
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            await box.close()
        raise
    return box
