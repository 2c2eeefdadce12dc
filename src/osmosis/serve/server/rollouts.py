"""A rollout server's life: it drains before the HTTP server closes, so that polling clients can fetch their results."""

import asyncio
import hmac
import logging
import secrets
import signal
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol, runtime_checkable

from fastapi import HTTPException

from osmosis.records.base import Record, utc_now
from osmosis.records.protocol import messages as wire
from osmosis.sdk.backend import ExecutionResult
from osmosis.sdk.chat import connections_kept
from osmosis.serve.http import encode_record
from osmosis.serve.server.callbacks import DeliveryPolicy, Listener, Post, ResultDelivery, Spool
from osmosis.serve.server.queue import AcceptedRollout, RolloutOutcome, RolloutQueue, ServeLimits, outcome_of_execution
from osmosis.serve.server.trace_files import EndedRollout, TraceFolder, TrajectoryWriter

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


@runtime_checkable
class Backend(Protocol):
    @property
    def max_concurrent(self) -> int | None: ...

    async def execute(
        self, init: wire.RolloutInit, *, on_state: Callable[[wire.RolloutState], None] | None = None
    ) -> ExecutionResult: ...

    # A backend may also have `max_queue_depth` (rollouts that may wait; None: the server's own limit), `overhead_s`
    # (seconds a rollout may take beyond its own time limits) and `aclose()` (returns when it has cleaned up).


SWEEP_EVERY_S = 0.5
RETURNS_WITHIN_S = 1.0  # Seconds within which a polling reader comes back after each answer; shutting down waits for it


@dataclass(eq=False, slots=True)
class RolloutRecord:
    entry: AcceptedRollout
    init: wire.RolloutInit | None
    lease: str | None  # token; None when called back, not polled
    lease_until: float = 0.0
    readers: int = 0
    last_read: float = -1e9  # when its state was last handed out, in seconds of the loop's clock
    is_read: bool = False
    completion_sent: bool = False


@dataclass(eq=False, repr=False)
class RolloutService:
    backend: Backend
    runtime: ServerRuntime
    _: KW_ONLY
    instance_id: str | None = None
    traces: TraceFolder | None = None
    files: TrajectoryWriter | None = None

    def __post_init__(self) -> None:
        self.process_id = str(uuid.uuid4())
        self.instance_id = self.instance_id or self.process_id
        self.limits = self.runtime.limits
        self._executions: dict[str, ExecutionResult] = {}
        self._rollouts: dict[str, RolloutRecord] = {}
        self.runtime.count_unread = self._count_unread
        self.runtime.background.append(self.sweep)

    def accept(self, init: wire.RolloutInit) -> wire.RolloutAccepted | None:
        """Start a rollout; return the answer of a polled one, else None. Raises `NotAccepted`."""
        polled = init.completion_callback_url is None and init.grader_callback_url is None
        if init.rollout_id is None:
            if polled:
                raise HTTPException(422, "rollout_id is required when no callback URLs are given")
            init = init.model_copy(update={"rollout_id": secrets.token_hex(16)})
        if not polled and init.grader_callback_url is None:
            init = init.model_copy(update={"grade": False})
        rollout_id = str(init.rollout_id)
        earlier = self._rollouts.get(rollout_id)
        if earlier is not None:
            if earlier.lease is None and not polled and (earlier.init is None or earlier.init == init):
                return None  # the same request again
            raise HTTPException(409, f"rollout {rollout_id} already exists")
        if rollout_id in self.runtime.queue.live:
            raise HTTPException(409, f"rollout {rollout_id} was started by another generation's init")
        record = RolloutRecord(
            entry=self._new_entry(rollout_id, init), init=init, lease=secrets.token_urlsafe(24) if polled else None
        )
        record.entry.on_end = lambda _: self._report_end(record)
        if not polled:
            record.entry.on_grading = lambda _: self._send_completion(record, init, None)
        self.runtime.queue.accept(record.entry)
        self._rollouts[rollout_id] = record
        self._trace(init, "rollout_accepted", messages=init.initial_messages, metadata=init.metadata)
        record.lease_until = asyncio.get_running_loop().time() + self.limits.lease_s
        if record.lease is None:
            return None
        return wire.RolloutAccepted(
            rollout_id=rollout_id,
            polling_lease_token=record.lease,
            result_wait_timeout_sec=self.limits.result_wait_s,
            polling_lease_timeout_sec=self.limits.lease_s,
        )

    async def result(
        self, rollout_id: str, lease: str, disconnected: Callable[[], Awaitable[None]]
    ) -> wire.RolloutState04:
        """Wait for a change of state, for the result, or until the reader has disconnected; renew the lease."""
        record = self._rollouts.get(rollout_id)
        if record is None:
            raise HTTPException(404, f"no rollout {rollout_id}")
        if record.lease is None or not hmac.compare_digest(record.lease.encode(), lease.encode()):
            raise HTTPException(403, f"the {wire.LEASE_HEADER} header is not the lease token of rollout {rollout_id}")
        loop = asyncio.get_running_loop()
        if record.entry.outcome is None:
            record.readers += 1
            watcher = loop.create_task(_wake_when(disconnected, record.entry))
            try:
                await record.entry.changed(self.limits.result_wait_s)
            finally:
                watcher.cancel()
                record.readers -= 1
                record.last_read = loop.time()
        record.lease_until = loop.time() + self.limits.lease_s
        record.is_read = record.is_read or record.entry.outcome is not None
        return self.state(rollout_id)

    def state(self, rollout_id: str) -> wire.RolloutState04:
        record = self._rollouts.get(rollout_id)
        if record is None:
            return wire.RolloutState04(rollout_id=rollout_id, status="unknown")
        status, outcome = record.entry.status, record.entry.outcome
        if outcome is None:
            return wire.RolloutState04(rollout_id=rollout_id, status=status)
        return wire.RolloutState04(rollout_id=rollout_id, status=status, sample=outcome.sample, **outcome.errors)

    def cancel(self, request: wire.CancelRequest) -> dict[str, str]:
        if sum(getattr(request, name) is not None for name in ("ids", "prefix", "all")) != 1:
            raise HTTPException(422, "give exactly one of ids, prefix or all")
        queue = self.runtime.queue
        if request.ids is not None:
            ids = request.ids
        elif request.prefix is not None:
            ids = [rollout_id for rollout_id in queue.live if rollout_id.startswith(request.prefix)]
        else:
            ids = list(queue.live) if request.all else []
        dispositions = queue.cancel(ids)
        for rollout_id in dispositions:
            if (record := self._rollouts.get(rollout_id)) is not None:
                record.is_read = True  # whoever cancels a rollout knows its end
        return dispositions

    def health(self) -> wire.ServerHealth:
        queue = self.runtime.queue
        return wire.ServerHealth(
            concurrency=queue.concurrency(),
            instance_id=self.instance_id,
            process_id=self.process_id,
            lifecycle=wire.ServerLifecycle(accepting_rollouts=queue.accepting, active_rollouts=queue.active),
        )

    async def sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now = loop.time()
            for rollout_id, record in list(self._rollouts.items()):
                finished = record.entry.finished_at
                if finished is not None:
                    if now - finished > self.limits.keep_s:
                        del self._rollouts[rollout_id]
                elif record.lease is not None and record.readers == 0 and now > record.lease_until:
                    self.runtime.queue.cancel([rollout_id], "the lease expired: no client read the result in time")

    def _new_entry(self, rollout_id: str, init: wire.RolloutInit) -> AcceptedRollout:
        limits = self.limits
        limit_s = limits.rollout_timeout_s
        if init.agent_timeout_sec is not None:
            grader_s = init.grader_timeout_sec if init.grade else 0.0
            phases_s = init.agent_timeout_sec + (limits.rollout_timeout_s if grader_s is None else grader_s)
            limit_s = phases_s + limits.timeout_grace_s + float(getattr(self.backend, "overhead_s", 0.0))

        async def execute(entry: AcceptedRollout) -> RolloutOutcome:
            result = await self.backend.execute(init, on_state=entry.switch)
            if self.files is not None and entry.outcome is None:
                self._executions[rollout_id] = result
            return outcome_of_execution(result)

        return AcceptedRollout(rollout_id, execute, limit_s)

    def _report_end(self, record: RolloutRecord) -> None:
        init, outcome = record.init, record.entry.outcome
        record.init = None
        assert init is not None
        assert outcome is not None
        self._trace(
            init,
            "rollout_ended",
            status=outcome.status,
            sample=outcome.sample.to_dict() if outcome.sample else None,
            failure=outcome.failure.to_dict() if outcome.failure else None,
        )
        execution = self._executions.pop(record.entry.id, None)
        write_files: Listener | None = None
        if self.files is not None and self.files.wants(record.entry.id):
            # Called with the answer to the last callback, so that usage and cost are in the files.
            write_files = partial(self.files.put, EndedRollout.of(record.entry, init, execution))
        if record.lease is not None:
            if write_files is not None:
                write_files(None)
            return
        self._send_completion(record, init, outcome, None if init.grader_callback_url else write_files)
        if init.grader_callback_url is not None:
            message = wire.GraderCallback(
                status="success" if outcome.status == "success" else "failure",
                rollout_id=str(init.rollout_id),
                sample=outcome.sample,
                **outcome.errors,
            )
            self._send(init, init.grader_callback_url, message, write_files)
        record.entry.outcome = RolloutOutcome(outcome.status)  # delivered elsewhere: only the ending is kept

    def _send_completion(
        self,
        record: RolloutRecord,
        init: wire.RolloutInit,
        outcome: RolloutOutcome | None,
        listener: Listener | None = None,
    ) -> None:
        url = init.completion_callback_url
        if url is None or record.completion_sent:
            return
        record.completion_sent = True
        succeeded = outcome is None or outcome.agent_finished
        message = wire.CompletionCallback(
            status="success" if outcome is None or succeeded else outcome.status,
            rollout_id=str(init.rollout_id),
            extra_fields=init.extra_fields,
            **({} if outcome is None or succeeded else outcome.errors),
        )
        self._send(init, url, message, listener)

    def _send(self, init: wire.RolloutInit, url: str, message: Record, listener: Listener | None = None) -> None:
        post = Post(str(init.rollout_id), url, encode_record(message), init.controller_api_key)
        self.runtime.delivery.send(post, listener)

    def _trace(self, init: wire.RolloutInit, event: str, **facts: object) -> None:
        if self.traces is None:
            return
        trace = self.traces.open(str(init.rollout_id), (init.llm_api_key, init.controller_api_key))
        trace.write({"event": event, "rollout_id": init.rollout_id, "timestamp": utc_now().isoformat(), **facts})

    def _count_unread(self) -> int:
        since = asyncio.get_running_loop().time() - RETURNS_WITHIN_S
        return sum(
            1
            for record in self._rollouts.values()
            if not record.is_read and (record.readers or record.last_read > since)
        )


async def _wake_when(disconnected: Callable[[], Awaitable[None]], entry: AcceptedRollout) -> None:
    await disconnected()
    entry.wake()
