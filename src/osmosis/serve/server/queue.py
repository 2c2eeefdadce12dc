"""The desk of a rollout server: takes rollouts in, starts as many at once as the backend allows, and sees that
each ends exactly once, whatever the backend does. It knows no protocol: what to run and whom to tell are callables.
A queued rollout is an entry in a deque, not a task, so ten thousand waiting ones cost next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from osmosis.records.rollout import Category
from osmosis.records.wire import RolloutState, ServerConcurrency
from osmosis.sdk.deadline import contained

from .limits import ServeLimits
from .outcome import Outcome, cancelled, crashed, failed

log = logging.getLogger("osmosis.serve")

StateSink = Callable[[RolloutState], None]
Execute = Callable[["Entry"], Awaitable[Outcome]]


@dataclass(eq=False, slots=True)
class Entry:
    """One accepted rollout."""

    id: str
    execute: Execute
    limit_s: float
    """From the start of running; the rollout is ended from outside when it passes."""
    on_end: Callable[[Entry], None] | None = None
    on_grading: Callable[[Entry], None] | None = None
    accepted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    status: RolloutState = "queued"
    outcome: Outcome | None = None
    cancel_reason: str = "cancelled"
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    holds_slot: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def switch(self, status: RolloutState) -> None:
        """A state the backend reports; ignored once the rollout is over."""
        if self.outcome is not None or status == self.status:
            return
        self.status = status
        if status == "grading" and self.on_grading is not None:
            self.on_grading(self)
        self.wake()

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            _resolve(waiter)

    async def changed(self, timeout: float) -> None:
        """Returns on the next change of state, or after `timeout` seconds."""
        if self.outcome is not None:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        timer = asyncio.get_running_loop().call_later(timeout, _resolve, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self.waiters:
                self.waiters.remove(waiter)


class QueueFull(Exception):
    """As many rollouts wait as may."""


class Draining(Exception):
    """The server is shutting down and takes nothing in."""


class Desk:
    """Queue, slots and endings of the rollouts of one server."""

    def __init__(self, max_concurrent: int | None, limits: ServeLimits) -> None:
        self.limits = limits
        self.max_concurrent = max_concurrent
        self.accepting = True
        self.finished = 0
        self._queue: deque[Entry] = deque()
        self._live: dict[str, Entry] = {}
        self._running = 0
        self._idle: asyncio.Event | None = None

    @property
    def active(self) -> int:
        """Rollouts without a result: queued and running."""
        return len(self._live)

    def concurrency(self) -> ServerConcurrency:
        queued = sum(1 for entry in self._queue if entry.outcome is None)
        return ServerConcurrency(max_concurrent=self.max_concurrent, queued=queued, running=len(self._live) - queued)

    def live(self, rollout_id: str) -> Entry | None:
        return self._live.get(rollout_id)

    def live_ids(self) -> list[str]:
        return list(self._live)

    def check(self) -> None:
        """Raises what `accept` would raise now."""
        if not self.accepting:
            raise Draining
        if len(self._queue) >= self.limits.max_queue and not self._slot_free():
            raise QueueFull

    def accept(self, entry: Entry) -> None:
        """Takes a rollout in; raises `Draining` or `QueueFull`. Its id must not be live."""
        self.check()
        entry.accepted_at = asyncio.get_running_loop().time()
        self._live[entry.id] = entry
        self._queue.append(entry)
        self._pump()

    def cancel(self, ids: Iterable[str], reason: str = "cancelled on request") -> dict[str, str]:
        """Ends the named rollouts; says what each was: `cancelled_queued`, `cancelled_running`, `not_found`."""
        said: dict[str, str] = {}
        for rollout_id in ids:
            entry = self._live.get(rollout_id)
            if entry is None:
                said[rollout_id] = "not_found"
                continue
            said[rollout_id] = "cancelled_queued" if entry.status == "queued" else "cancelled_running"
            self.end(entry, cancelled(reason))
        return said

    def end(self, entry: Entry, outcome: Outcome) -> None:
        """Gives a rollout its one result; the first one wins and later ones are dropped."""
        if entry.outcome is not None:
            return
        loop = asyncio.get_running_loop()
        entry.outcome = outcome
        entry.status = outcome.status
        entry.finished_at = loop.time()
        if entry.timer is not None:
            entry.timer.cancel()
        self._live.pop(entry.id, None)
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
                log.exception("the end of rollout %s could not be told", entry.id)
        self._pump()
        if not self._live and self._idle is not None:
            self._idle.set()

    async def drain(self, timeout: float) -> None:
        """Takes nothing more in, ends what waits, lets what runs go on for `timeout` seconds, then ends that too."""
        self.accepting = False
        self._idle = asyncio.Event()
        for entry in [e for e in self._queue if e.outcome is None]:
            self.end(entry, failed("the rollout server shut down before this rollout was started"))
        self._queue.clear()
        if self._live:
            try:
                await asyncio.wait_for(self._idle.wait(), timeout)
            except asyncio.TimeoutError:
                pass
        for entry in list(self._live.values()):
            self.end(entry, failed("the rollout server shut down while this rollout was still running"))

    def hurry(self) -> None:
        """Cuts a running `drain` short."""
        if self._idle is not None:
            self._idle.set()

    def _slot_free(self) -> bool:
        return self.max_concurrent is None or self._running < self.max_concurrent

    def _pump(self) -> None:
        while self._queue and self._slot_free():
            entry = self._queue.popleft()
            if entry.outcome is None:
                self._start(entry)

    def _start(self, entry: Entry) -> None:
        loop = asyncio.get_running_loop()
        self._running += 1
        entry.holds_slot = True
        entry.started_at = loop.time()
        entry.switch("running")
        entry.timer = loop.call_later(entry.limit_s, self._expire, entry)
        entry.task = loop.create_task(self._run(entry))

    async def _run(self, entry: Entry) -> None:
        try:
            outcome = await contained(entry.execute(entry))
        except asyncio.CancelledError:
            outcome = cancelled(entry.cancel_reason)
        except Exception as exc:  # noqa: BLE001 - one rollout is a border: any error of user code becomes its result
            outcome = crashed(exc)
        self._release(entry)
        self.end(entry, outcome)
        self._pump()

    def _expire(self, entry: Entry) -> None:
        self.end(entry, failed(f"the rollout ran past its limit of {entry.limit_s:g} s", category=Category.TIMEOUT))

    def _abandon(self, entry: Entry) -> None:
        if entry.holds_slot:
            log.warning("rollout %s goes on after its end; its slot is given away", entry.id)
            self._release(entry)
            self._pump()

    def _release(self, entry: Entry) -> None:
        if entry.holds_slot:
            entry.holds_slot = False
            self._running -= 1


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
