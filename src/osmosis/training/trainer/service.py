"""The trainer's HTTP server on a Unix socket, in a thread. Without torch, so that the tests' trainer is the same."""

import asyncio
import logging
import os
import socket
import threading
import traceback
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Literal, Protocol

import uvicorn
from pydantic import ValidationError as RecordError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from osmosis.errors import ModelError, OsmosisError
from osmosis.records.run.rollout import Category
from osmosis.training.protocol import messages
from osmosis.training.protocol.messages import Batch, Failed, Kind

FailureKind = Literal["model", "memory", "data", "diverged", "engine", "bug"]
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
LESS_MEMORY = (
    "lower max_response_length or rollout_batch_size, raise gradient_accumulation, or set gradient_checkpointing = true"
)


class TrainingFailed(OsmosisError):
    """A known reason; `kind` is the category of the `failed` event, `hint` what to change."""

    def __init__(self, message: str, *, kind: FailureKind = "model", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


def out_of_memory(error: BaseException | str) -> bool:
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def failed_event(error: BaseException, step: int) -> Failed:
    if isinstance(error, TrainingFailed):
        return Failed(category=error.kind, message=error.message, fix=error.hint, step=step)
    if out_of_memory(error):
        message = f"out of memory in step {step + 1}: {_first_line(error)}"
        return Failed(category="memory", message=message, fix=LESS_MEMORY, step=step)
    if isinstance(error, OsmosisError):
        return Failed(category="data", message=error.message, fix=error.hint, step=step)
    frames = "".join(traceback.format_exception(error))[-4000:]
    message = f"{type(error).__name__}: {_first_line(error)}"
    return Failed(category="bug", message=message, step=step, traceback=frames)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:500]


log = logging.getLogger("osmosis.trainer")

MAX_WAIT_S = 60.0
KEEP_ALIVE_S = 3600
BACKLOG = 1024
NDJSON = "application/x-ndjson"


class Sampler(Protocol):
    def stream(
        self, request: messages.SampleRequest
    ) -> AsyncGenerator[messages.SampleDelta | messages.SampledAnswer, None]:
        """Yield pieces when the request streams, the whole answer last; closing it frees the request."""


class Stopped(Exception): ...


class EventLog:
    """Numbered events, kept until the job asks for later ones. Any thread writes, the server's reads."""

    def __init__(self) -> None:
        self._events: deque[messages.Numbered] = deque()
        self.last = 0
        self._acknowledged = 0
        self._changed = threading.Condition()
        self._listeners: set[Callable[[], None]] = set()

    def append(self, event: messages.Event) -> None:
        with self._changed:
            self.last += 1
            self._events.append(messages.Numbered(number=self.last, event=event))
            for wake in self._listeners:
                wake()

    def after(self, number: int) -> list[messages.Numbered]:
        with self._changed:
            self._acknowledged = max(self._acknowledged, min(number, self.last))
            while self._events and self._events[0].number <= self._acknowledged:
                self._events.popleft()
            self._changed.notify_all()
            return [event for event in self._events if event.number > number]

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """Wait until the job has dealt with every event; return False when the time is up."""
        with self._changed:
            return self._changed.wait_for(lambda: self._acknowledged >= self.last, timeout_s)

    async def wait_after(self, number: int, timeout_s: float) -> list[messages.Numbered]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        with self._changed:
            self._listeners.add(wake)
        try:
            events = self.after(number)
            if not events:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(woken.wait(), timeout_s)
                events = self.after(number)
            return events
        finally:
            with self._changed:
                self._listeners.discard(wake)


class TrainerService:
    """Serves until its block ends; the training loop sets `sampler` when the model is loaded."""

    def __init__(self, run: str, socket_path: Path) -> None:
        self.health = messages.TrainerHealth(state="loading", run=run)
        self.sampler: Sampler | None = None
        self.events = EventLog()
        self.stop_requested = threading.Event()
        self.loop = asyncio.new_event_loop()
        self._socket_path = socket_path
        self._open: dict[tuple[int, str], messages.Collect] = {}
        self._batches: dict[tuple[int, str], Batch] = {}
        self._accepted: set[tuple[int, str]] = set()
        self._answered = threading.Condition()
        app = Starlette(
            routes=[
                Route("/health", self._get_health),
                Route("/events", self._get_events),
                Route("/sample", self._sample, methods=["POST"]),
                Route("/batch", self._accept_batch, methods=["POST"]),
                Route("/stop", self._stop, methods=["POST"]),
            ]
        )
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,  # longer than the job's client keeps an unused connection
            timeout_graceful_shutdown=1,
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, name="trainer-service", daemon=True)
        self._listener: socket.socket | None = None

    def __enter__(self) -> "TrainerService":
        self._socket_path.unlink(missing_ok=True)
        # Bound here and not by uvicorn: the mode has to be right from the first moment on.
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        umask = os.umask(0o177)
        try:
            self._listener.bind(str(self._socket_path))
        finally:
            os.umask(umask)
        self._listener.listen(BACKLOG)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(timeout=10)
        self._socket_path.unlink(missing_ok=True)

    def emit(self, event: messages.Event) -> None:
        """Send an event to the job; safe from any thread."""
        if isinstance(event, messages.Failed):
            self.health.state = "failed"
        elif isinstance(event, messages.Done):
            self.health.state = "done"
        self.events.append(event)

    def ask(self, collect: messages.Collect) -> None:
        with self._answered:
            self._open[collect.step, collect.kind] = collect
        self.emit(collect)

    def wait(self, step: int, kind: Kind) -> Batch:
        """Return what was asked for; wait without a limit. Raise `Stopped` on a stop."""
        key = (step, kind)
        with self._answered:
            self._answered.wait_for(lambda: key in self._batches or self.stop_requested.is_set())
            if key not in self._batches:
                raise Stopped
            del self._open[key]
            return self._batches.pop(key)

    def request_stop(self) -> None:
        """End the wait of `collect`; the loop sees `stop_requested` at its next step boundary."""
        with self._answered:
            self.stop_requested.set()
            self._answered.notify_all()

    def finish(self, event: messages.Done | messages.Failed, *, timeout_s: float = 30.0) -> None:
        self.emit(event)
        if not self.events.wait_acknowledged(timeout_s):
            log.warning("nobody asked for the last events within %.0f s", timeout_s)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        assert self._listener is not None
        self.loop.run_until_complete(self._server.serve(sockets=[self._listener]))

    async def _get_health(self, request: Request) -> Response:
        self.health.last_event = self.events.last
        return Response(self.health.model_dump_json(), media_type="application/json")

    async def _get_events(self, request: Request) -> Response:
        try:
            number = int(request.query_params.get("after", "0"))
            wait_s = min(float(request.query_params.get("wait", "0")), MAX_WAIT_S)
        except ValueError:
            return PlainTextResponse("after and wait are numbers", 400)
        events = await self.events.wait_after(number, wait_s)
        return Response(b"".join(event.to_line() for event in events), media_type=NDJSON)

    async def _sample(self, request: Request) -> Response:
        try:
            sample_request = messages.SampleRequest.model_validate_json(await request.body())
        except RecordError as error:
            return PlainTextResponse(str(error), 422)
        # Streamed also where the answer is one line: a client that disconnects then cancels its request.
        return StreamingResponse(self._stream_lines(sample_request), media_type=NDJSON)

    async def _stream_lines(self, request: messages.SampleRequest) -> AsyncGenerator[bytes, None]:
        self.health.requests_in_flight += 1
        try:
            async with aclosing(self._answer(request)) as lines:
                async for line in lines:
                    yield line.to_line()
        finally:
            self.health.requests_in_flight -= 1

    async def _answer(self, request: messages.SampleRequest) -> AsyncGenerator[messages.SampleLine, None]:
        try:
            if self.sampler is None:
                raise ModelError("the model is still loading", category=Category.SERVER_ERROR.value)
            async with aclosing(self.sampler.stream(request)) as parts:
                async for part in parts:
                    if isinstance(part, messages.SampledAnswer):
                        self.health.requests_done += 1
                        yield messages.SampleLine(done=part)
                    elif request.stream:
                        yield messages.SampleLine(delta=part)
        except ModelError as error:
            yield messages.SampleLine(error=messages.SampleError(category=error.category, message=error.message))
        except Exception as error:
            log.exception("sampling failed")
            message = f"{type(error).__name__}: {error}"
            yield messages.SampleLine(error=messages.SampleError(category=Category.SERVER_ERROR.value, message=message))

    async def _accept_batch(self, request: Request) -> Response:
        body = await request.body()
        try:
            batch = await asyncio.to_thread(Batch.from_bytes, body)
        except ValueError as error:
            return PlainTextResponse(str(error), 422)
        with self._answered:
            key = (batch.step, batch.kind)
            collect = self._open.get(key)
            if key in self._accepted or self.stop_requested.is_set():
                return Response(status_code=204)  # accepted before, or not needed any more: the job can do nothing
            if collect is None:
                open_now = ", ".join(f"{kind} of step {step}" for step, kind in self._open) or "none"
                message = f"no collect is open for {batch.kind} of step {batch.step} (open: {open_now})"
                return PlainTextResponse(message, 409)
            try:
                _check_batch(batch, collect)
            except OsmosisError as error:
                return PlainTextResponse(error.message, 422)
            self._batches[key] = batch
            self._accepted.add(key)
            self._answered.notify_all()
        return Response(status_code=204)

    async def _stop(self, request: Request) -> Response:
        self.request_stop()
        return Response(status_code=204)


def _check_batch(batch: Batch, collect: messages.Collect) -> None:
    rows, seen = Counter(batch.rows or collect.rows), set()
    if rows.total() != len(collect.rows):
        raise OsmosisError(f"there are {rows.total()} groups instead of {len(collect.rows)}")
    for sequence in batch.sequences:
        key = (sequence.row, sequence.attempt, sequence.part)
        where = f"row {sequence.row}, attempt {sequence.attempt}, part {sequence.part}"
        if not 0 <= sequence.attempt < collect.samples_per_row * rows[sequence.row]:
            raise OsmosisError(f"{where} was not asked for")
        if key in seen:
            raise OsmosisError(f"{where} comes twice")
        seen.add(key)
