"""The queue of a rollout server: as many rollouts at once as the backend allows, each with exactly one outcome."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from osmosis.base.jsonable import JsonObject
from osmosis.records.protocol.messages import RolloutState, ServerConcurrency, WireSample
from osmosis.records.run.rollout import Category, Failure, Phase
from osmosis.sdk.backend import ExecutionResult
from osmosis.sdk.classify import failure_of, wire_category
from osmosis.sdk.types import json_safe
from osmosis.sdk.user_code import contain


@dataclass(frozen=True)
class ServeLimits:
    max_queue: int = 10_000  # Rollouts that may wait for a slot; one more is answered 429
    rollout_timeout_s: float = 3600.0  # Limit of one rollout whose request names no limits of its own
    timeout_grace_s: float = 15.0  # Time beyond the request's own limits before the rollout is ended from outside
    abandon_after_s: float = 5.0
    """The slot of a rollout whose code is still running after its end is freed after this long."""
    result_wait_s: float = 30.0  # How long one read of a result may wait for a change (generation 0.4)
    lease_s: float = 120.0  # A polled rollout that nobody reads for this long is cancelled (generation 0.4)
    keep_s: float = 900.0  # How long a finished rollout's result can be read again
    drain_s: float = 30.0  # On shutdown: how long running rollouts may go on before they are ended with an error result
    delivery_drain_s: float = 10.0
    """On shutdown: how long undelivered results are still tried before they are spooled to disk."""
    max_body_bytes: int = 64 * 1024 * 1024


TRACEBACK_CHARS = 4000


@dataclass(frozen=True, slots=True)
class RolloutOutcome:
    status: Literal["success", "failure", "cancelled"]
    sample: WireSample | None = None
    failure: Failure | None = None
    category: str | None = None  # The protocol's own word for why: timeout, validation_error, http_error, agent_error

    @property
    def agent_finished(self) -> bool:
        return self.status == "success" or (self.failure is not None and self.failure.phase is Phase.SCORE)

    @property
    def message(self) -> str | None:
        return self.failure.message if self.failure else None

    @property
    def errors(self) -> JsonObject:
        return {"err_message": self.message, "err_category": self.category, "failure": self.failure}


def failed_outcome(message: str, category: Category = Category.AGENT_ERROR) -> RolloutOutcome:
    word = "timeout" if category is Category.TIMEOUT else "agent_error"
    return RolloutOutcome(
        "failure", failure=Failure(phase=Phase.AGENT, category=category, message=message), category=word
    )


def cancelled_outcome(message: str) -> RolloutOutcome:
    failure = Failure(phase=Phase.AGENT, category=Category.CANCELLED, message=message)
    return RolloutOutcome("cancelled", failure=failure, category="agent_error")


def crashed_outcome(exc: BaseException) -> RolloutOutcome:
    failure = failure_of(exc, Phase.AGENT)
    if failure.traceback is not None:
        failure.traceback = failure.traceback[-TRACEBACK_CHARS:]
    return RolloutOutcome("failure", failure=failure, category=wire_category(failure, exc))


def outcome_of_execution(result: ExecutionResult) -> RolloutOutcome:
    sample = result.sample.to_wire() if result.sample is not None else None
    if sample is not None and result.info:
        sample.extra_fields = {**json_safe(result.info, "info"), **sample.extra_fields}
    failure = result.failure
    if failure is None and result.status != "success":
        failure = Failure(
            phase=result.err_phase or Phase.AGENT,
            category=Category.TIMEOUT if result.err_category == "timeout" else Category.AGENT_ERROR,
            message=result.err_message or "the backend gave no reason",
            traceback=result.traceback,
        )
    return RolloutOutcome(status=result.status, sample=sample, failure=failure, category=result.err_category)


log = logging.getLogger("osmosis.serve")


@dataclass(eq=False, slots=True)
class AcceptedRollout:
    id: str
    execute: "Callable[[AcceptedRollout], Awaitable[RolloutOutcome]]"
    limit_s: float  # seconds from the start of running; then the rollout is ended from outside
    on_end: "Callable[[AcceptedRollout], None] | None" = None
    on_grading: "Callable[[AcceptedRollout], None] | None" = None
    accepted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    status: RolloutState = "queued"
    outcome: RolloutOutcome | None = None
    cancel_reason: str = "cancelled"
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    holds_slot: bool = False
    _change: asyncio.Event = field(default_factory=asyncio.Event)

    def switch(self, status: RolloutState) -> None:
        if self.outcome is not None or status == self.status:
            return
        self.status = status
        if status == "grading" and self.on_grading is not None:
            self.on_grading(self)
        self.wake()

    def wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def changed(self, timeout: float) -> None:
        if self.outcome is None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._change.wait(), timeout)


class NotAccepted(Exception):
    """The server takes no rollout now; `retry_after_s` says when to ask again."""

    retry_after_s = 5


class QueueFull(NotAccepted): ...


class Draining(NotAccepted):
    retry_after_s = 30


@dataclass(eq=False, repr=False)
class RolloutQueue:
    max_concurrent: int | None
    limits: ServeLimits
    accepting: bool = True
    finished: int = 0
    _queue: deque[AcceptedRollout] = field(default_factory=deque)
    live: dict[str, AcceptedRollout] = field(default_factory=dict)
    _running: int = 0
    _idle: asyncio.Event | None = None

    @property
    def active(self) -> int:
        return len(self.live)

    def concurrency(self) -> ServerConcurrency:
        queued = sum(1 for entry in self._queue if entry.outcome is None)
        return ServerConcurrency(max_concurrent=self.max_concurrent, queued=queued, running=len(self.live) - queued)

    def check(self) -> None:
        if not self.accepting:
            raise Draining
        if len(self._queue) >= self.limits.max_queue and not self._slot_free():
            raise QueueFull

    def accept(self, entry: AcceptedRollout) -> None:
        self.check()
        entry.accepted_at = asyncio.get_running_loop().time()
        self.live[entry.id] = entry
        self._queue.append(entry)
        self._pump()

    def cancel(self, ids: Iterable[str], reason: str = "cancelled on request") -> dict[str, str]:
        """End the named rollouts; return by id what each was: `cancelled_queued`, `cancelled_running`, `not_found`."""
        dispositions: dict[str, str] = {}
        for rollout_id in ids:
            entry = self.live.get(rollout_id)
            if entry is None:
                dispositions[rollout_id] = "not_found"
                continue
            dispositions[rollout_id] = "cancelled_queued" if entry.status == "queued" else "cancelled_running"
            self.end(entry, cancelled_outcome(reason))
        return dispositions

    def end(self, entry: AcceptedRollout, outcome: RolloutOutcome) -> None:
        if entry.outcome is not None:
            return
        loop = asyncio.get_running_loop()
        entry.outcome = outcome
        entry.status = outcome.status
        entry.finished_at = loop.time()
        if entry.timer is not None:
            entry.timer.cancel()
        self.live.pop(entry.id, None)
        self.finished += 1
        task = entry.task
        if task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            loop.call_later(self.limits.abandon_after_s, self._abandon, entry)
        entry.wake()
        if entry.on_end is not None:
            try:
                entry.on_end(entry)
            except Exception:
                # Nothing may keep the other rollouts from starting, or the server from draining.
                log.exception("the terminal result of rollout %s could not be reported", entry.id)
        self._pump()
        if not self.live and self._idle is not None:
            self._idle.set()

    async def drain(self, timeout: float) -> None:
        self.accepting = False
        self._idle = asyncio.Event()
        for entry in [e for e in self._queue if e.outcome is None]:
            self.end(entry, failed_outcome("the rollout server shut down before this rollout was started"))
        self._queue.clear()
        if self.live:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeout)
        for entry in list(self.live.values()):
            self.end(entry, failed_outcome("the rollout server shut down while this rollout was still running"))

    def hurry(self) -> None:
        if self._idle is not None:
            self._idle.set()

    def _slot_free(self) -> bool:
        return self.max_concurrent is None or self._running < self.max_concurrent

    def _pump(self) -> None:
        while self._queue and self._slot_free():
            entry = self._queue.popleft()
            if entry.outcome is None:
                loop = asyncio.get_running_loop()
                self._running += 1
                entry.holds_slot = True
                entry.started_at = loop.time()
                entry.switch("running")
                message = f"the rollout exceeded its time limit of {entry.limit_s:g} s"
                entry.timer = loop.call_later(entry.limit_s, self.end, entry, failed_outcome(message, Category.TIMEOUT))
                entry.task = loop.create_task(self._run(entry))

    async def _run(self, entry: AcceptedRollout) -> None:
        try:
            outcome = await contain(entry.execute(entry))
        except asyncio.CancelledError:
            outcome = cancelled_outcome(entry.cancel_reason)
        except Exception as exc:  # noqa: BLE001 - one rollout is a border: any error of user code becomes its result
            outcome = crashed_outcome(exc)
        self._release(entry)
        self.end(entry, outcome)
        self._pump()

    def _abandon(self, entry: AcceptedRollout) -> None:
        if entry.holds_slot:
            log.warning("rollout %s is still running after it was ended; its slot is freed", entry.id)
            self._release(entry)
            self._pump()

    def _release(self, entry: AcceptedRollout) -> None:
        if entry.holds_slot:
            entry.holds_slot = False
            self._running -= 1
