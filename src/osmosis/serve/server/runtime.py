"""A rollout server's life: it drains before the HTTP server closes, so that polling clients can fetch their results."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from types import FrameType

from osmosis.sdk.chat import connections_kept
from osmosis.serve.server.callbacks import DeliveryPolicy, ResultDelivery, Spool
from osmosis.serve.server.queue import RolloutQueue, ServeLimits

log = logging.getLogger("osmosis.serve")


class ServerRuntime:
    def __init__(
        self,
        max_concurrent: int | None,
        limits: ServeLimits,
        *,
        spool_dir: Path | None = None,
        delivery_policy: DeliveryPolicy | None = None,
    ) -> None:
        self.limits = limits
        self.queue = RolloutQueue(max_concurrent, limits)
        self.delivery = ResultDelivery(spool=Spool(spool_dir) if spool_dir else None, policy=delivery_policy)
        self.background: list[Callable[[], Coroutine[object, object, None]]] = []
        self.around: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Entered before the server takes rollouts, left before it drains."""
        self.backends: list[Callable[[], Coroutine[object, object, None]]] = []
        """Awaited when nothing runs any more: what cancelled rollouts still clean up must not die with the process."""
        self.after_close: list[Callable[[], None]] = []
        """Called last, in a thread: they may wait for disks."""
        self.count_unread: Callable[[], int] = lambda: 0  # polled results that nobody has read yet
        self._hurried = False
        self._drained: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        signals = SignalDrain(self.drain, self.hurry)
        tasks = [asyncio.get_running_loop().create_task(work()) for work in self.background]
        try:
            self.delivery.start()
            signals.install()
            async with connections_kept(), self.around():
                yield
        finally:
            signals.remove()
            await self.drain()
            for task in tasks:
                task.cancel()
            await self.delivery.close(0.5 if self._hurried else self.limits.delivery_drain_s)
            for close_backend in self.backends:
                await close_backend()
            for close in self.after_close:
                await asyncio.to_thread(close)

    async def drain(self) -> None:
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_task(self._drain())
        await asyncio.shield(self._drained)

    def hurry(self) -> None:
        self._hurried = True
        self.queue.hurry()

    async def _drain(self) -> None:
        if self.queue.active:
            log.info("shutting down: waiting for %d rollouts", self.queue.active)
        await self.queue.drain(self.limits.drain_s)
        loop = asyncio.get_running_loop()
        until = loop.time() + self.limits.delivery_drain_s
        while self.count_unread() and loop.time() < until and not self._hurried:  # noqa: ASYNC110 - readers come and go on their own time
            await asyncio.sleep(0.02)


class SignalDrain:
    """Run `drain` at the first SIGTERM or SIGINT, then the earlier handler; at a second one `hurry` and the handler."""

    def __init__(self, drain: Callable[[], Awaitable[None]], hurry: Callable[[], None]) -> None:
        self._drain = drain
        self._hurry = hurry
        self._previous: dict[int, Callable[[int, FrameType | None], object]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._draining = False

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.getsignal(number)
            if callable(before) and before is not signal.default_int_handler:
                self._previous[number] = before
                signal.signal(number, self._on_signal)

    def remove(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number, before in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, before)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        before = self._previous.get(number)
        if self._draining or self._loop is None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._hurry)
            if before is not None:
                before(number, frame)
            return
        self._draining = True
        self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        assert self._loop is not None
        self._task = self._loop.create_task(self._finish(number))

    async def _finish(self, number: int) -> None:
        try:
            await self._drain()
        finally:
            before = self._previous.get(number)
            if before is not None:
                before(number, None)
