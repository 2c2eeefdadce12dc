"""The trainer's end of the connection: an HTTP server on a Unix socket, in a thread of its own.

The training loop is the main thread. It emits events and waits for batches here; samples go straight to the sampler.
This module knows no model and no torch, so the fake trainer of `osmosis.testing` is the same server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from aiohttp import web
from pydantic import ValidationError as BadShape

from osmosis.errors import ModelError, OsmosisError
from osmosis.records.rollout import Category
from osmosis.training.link import (
    Batch,
    Collect,
    Done,
    Event,
    Failed,
    Numbered,
    SampledAnswer,
    SampleDelta,
    SampleError,
    SampleLine,
    SampleRequest,
    TrainerHealth,
)

log = logging.getLogger("osmosis.trainer")

MAX_BODY = 1 << 31
"""A batch of long rollouts; it comes from the job, which is trusted."""
MAX_WAIT_S = 60.0
_LINES = "application/x-ndjson"


class Sampler(Protocol):
    """What answers `/sample`."""

    def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        """Pieces when the request streams, the whole answer last; raises `ModelError`. Closing it frees the request."""
        ...


class Stopped(Exception):
    """A stop was asked for while the loop waited for a batch."""


class EventLog:
    """Numbered events, kept until the job asks for what comes after them. Any thread writes, the server's reads."""

    def __init__(self) -> None:
        self._kept: deque[Numbered] = deque()
        self._last = 0
        self._dealt_with = 0
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()

    @property
    def last(self) -> int:
        return self._last

    def append(self, event: Event) -> None:
        with self._changed:
            self._last += 1
            self._kept.append(Numbered(number=self._last, event=event))
            for wake in self._listeners:
                wake()

    def after(self, number: int) -> list[Numbered]:
        """Everything newer; what is not is forgotten."""
        with self._changed:
            self._dealt_with = max(self._dealt_with, min(number, self._last))
            while self._kept and self._kept[0].number <= self._dealt_with:
                self._kept.popleft()
            self._changed.notify_all()
            return [one for one in self._kept if one.number > number]

    def wait_dealt_with(self, timeout_s: float) -> bool:
        """Until the job has dealt with every event; False when it has not within that time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._dealt_with >= self._last, timeout_s)

    async def wait_newer(self, number: int, timeout_s: float) -> list[Numbered]:
        """`after`, once there is something, or nothing after that time."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._listeners.add(wake)
        try:
            found = self.after(number)
            if not found:
                try:
                    await asyncio.wait_for(woken.wait(), timeout_s)
                except asyncio.TimeoutError:
                    pass
                found = self.after(number)
            return found
        finally:
            with self._changed:
                self._listeners.discard(wake)


class TrainerService:
    """`with TrainerService(run, socket) as service:` serves until the block ends.

    Of the training loop: `emit`, `collect`, `stop_requested`, `finish`. `sampler` is set when the model is loaded.
    """

    def __init__(self, run: str, socket_path: Path) -> None:
        self.health = TrainerHealth(state="loading", run=run)
        self.sampler: Sampler | None = None
        self.events = EventLog()
        self.stop_requested = threading.Event()
        self._socket_path = socket_path
        self._open: Collect | None = None
        self._batch: Batch | None = None
        self._taken: tuple[int, str] | None = None
        self._answered = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="trainer-service", daemon=True)
        self._ready = threading.Event()
        self._error: OSError | None = None
        self._in_flight = 0
        self._samples = 0

    def __enter__(self) -> TrainerService:
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._socket_path.unlink(missing_ok=True)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The server's event loop, on which samplers are used."""
        return self._loop

    def emit(self, event: Event) -> None:
        """Tells the job; from any thread."""
        if isinstance(event, Failed):
            self.health.state = "failed"
        elif isinstance(event, Done):
            self.health.state = "done"
        self.events.append(event)

    def collect(self, collect: Collect) -> Batch:
        """Asks the job for the rollouts of a step and waits, however long it takes; raises `Stopped` on a stop."""
        with self._answered:
            self._open, self._batch = collect, None
        self.emit(collect)
        with self._answered:
            self._answered.wait_for(lambda: self._batch is not None or self.stop_requested.is_set())
            batch, self._open, self._batch = self._batch, None, None
        if batch is None:
            raise Stopped
        return batch

    def request_stop(self) -> None:
        """Ends the wait of `collect`; the loop sees `stop_requested` at its next step boundary."""
        with self._answered:
            self.stop_requested.set()
            self._answered.notify_all()

    def finish(self, event: Done | Failed, *, timeout_s: float = 30.0) -> None:
        """The last event; waits until the job has read it."""
        self.emit(event)
        if not self.events.wait_dealt_with(timeout_s):
            log.warning("nobody asked for the last events within %.0f s", timeout_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_get("/health", self._health)
        app.router.add_get("/events", self._events)
        app.router.add_post("/sample", self._sample)
        app.router.add_post("/batch", self._take_batch)
        app.router.add_post("/stop", self._stop)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        try:
            self._loop.run_until_complete(self._start(runner))
        except OSError as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())

    async def _start(self, runner: web.AppRunner) -> None:
        await runner.setup()
        self._socket_path.unlink(missing_ok=True)
        # Bound here and not by aiohttp: the mode has to be right from the first moment on.
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._socket_path))
        finally:
            os.umask(before)
        await web.SockSite(runner, listener, backlog=1024).start()

    async def _health(self, _: web.Request) -> web.Response:
        health = self.health.model_copy(
            update={
                "requests_in_flight": self._in_flight,
                "requests_done": self._samples,
                "last_event": self.events.last,
            }
        )
        return web.Response(body=health.model_dump_json().encode(), content_type="application/json")

    async def _events(self, request: web.Request) -> web.Response:
        try:
            number = int(request.query.get("after", "0"))
            wait = min(float(request.query.get("wait", "0")), MAX_WAIT_S)
        except ValueError:
            return web.Response(status=400, text="after and wait are numbers")
        found = await self.events.wait_newer(number, wait)
        return web.Response(body=b"".join(one.to_line() for one in found), content_type=_LINES)

    async def _sample(self, request: web.Request) -> web.StreamResponse:
        try:
            wanted = SampleRequest.model_validate_json(await request.read())
        except BadShape as error:
            return web.Response(status=422, text=str(error))
        response = web.StreamResponse(headers={"Content-Type": _LINES})
        if wanted.stream:
            await response.prepare(request)
        self._in_flight += 1
        try:
            async with aclosing(self._lines(wanted)) as lines:
                async for line in lines:
                    if not response.prepared:
                        # One write for head and body: most answers come in one piece.
                        return web.Response(body=line.to_line(), content_type=_LINES)
                    await response.write(line.to_line())
        finally:
            self._in_flight -= 1
        await response.write_eof()
        return response

    async def _lines(self, wanted: SampleRequest) -> AsyncGenerator[SampleLine, None]:
        try:
            async with aclosing(self._loaded().stream(wanted)) as parts:
                async for part in parts:
                    if isinstance(part, SampledAnswer):
                        self._samples += 1
                        yield SampleLine(done=part)
                    elif wanted.stream:
                        yield SampleLine(delta=part)
        except ModelError as error:
            yield SampleLine(error=SampleError(category=error.category, message=error.message))
        except Exception as error:
            log.exception("sampling failed")
            what = f"{type(error).__name__}: {error}"
            yield SampleLine(error=SampleError(category=Category.SERVER_ERROR.value, message=what))

    def _loaded(self) -> Sampler:
        if self.sampler is None:
            raise ModelError("the model is still loading", category=Category.SERVER_ERROR.value)
        return self.sampler

    async def _take_batch(self, request: web.Request) -> web.Response:
        try:
            batch = Batch.model_validate_json(await request.read())
        except BadShape as error:
            return web.Response(status=422, text=str(error))
        with self._answered:
            collect = self._open
            given = (batch.step, batch.kind)
            if given == self._taken or (self.stop_requested.is_set() and self._batch is None):
                return web.Response(status=204)  # taken before, or no longer wanted: nothing that a job could do
            if collect is None or self._batch is not None or given != (collect.step, collect.kind):
                open_now = f"{collect.kind} of step {collect.step}" if collect and self._batch is None else "none"
                text = f"no collect is open for {batch.kind} of step {batch.step} (open: {open_now})"
                return web.Response(status=409, text=text)
            try:
                _check_fits(batch, collect)
            except OsmosisError as error:
                return web.Response(status=422, text=error.message)
            self._batch, self._taken = batch, given
            self._answered.notify_all()
        return web.Response(status=204)

    async def _stop(self, _: web.Request) -> web.Response:
        self.request_stop()
        return web.Response(status=204)


def _check_fits(batch: Batch, collect: Collect) -> None:
    rows, seen = set(collect.rows), set()
    for one in batch.sequences:
        key = (one.row, one.attempt, one.part)
        where = f"row {one.row}, attempt {one.attempt}, part {one.part}"
        if one.row not in rows or not 0 <= one.attempt < collect.samples_per_row:
            raise OsmosisError(f"{where} was not asked for")
        if key in seen:
            raise OsmosisError(f"{where} comes twice")
        seen.add(key)
