"""Drains a server when it is told to stop, before the HTTP server closes its sockets: trainers that poll can still
fetch their results while running rollouts finish. It puts itself before the signal handlers that are there already
and hands on to them afterwards; a second signal is handed on at once. Outside a main thread it does nothing.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SignalDrain:
    """Runs `drain` once on SIGTERM or SIGINT, then the handler that was installed before; a second signal calls
    `hurry` and that handler at once."""

    def __init__(self, drain: Callable[[], Awaitable[None]], hurry: Callable[[], None]) -> None:
        self._drain = drain
        self._hurry = hurry
        self._previous: dict[int, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked = False

    def install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._loop = asyncio.get_running_loop()
        for number in _SIGNALS:
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
        if self._asked or self._loop is None:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._hurry)
            if before is not None:
                before(number, frame)
            return
        self._asked = True
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
