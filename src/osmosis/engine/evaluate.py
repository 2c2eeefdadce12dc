"""The loop: every selected row, every attempt, to a rollout, to its scores, to the journal, to the report.

There is one of it. The local command and a platform job differ in the `RolloutFn` they bring; a regrade brings none.
Lanes pull from one lazy iterator, so of the dataset only each row's key stays in memory; a rollout counts once it is
on disk; one that fails is data. What a killed process had in flight is owed, nothing else is lost.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from osmosis.base.light_dataclass import dataclass
from osmosis.datasets.keys import RowKeys
from osmosis.datasets.scan import row_hash
from osmosis.errors import OsmosisError
from osmosis.metrics.summary import Summary
from osmosis.records.dataset import Row
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout
from osmosis.sdk.calls import LAST_GRACE_S, end_all
from osmosis.sdk.classify import describe

from .attempt import Attempts
from .guards import Breaker, Spending
from .journal import Journal
from .key_set import KeySet
from .limiter import Limiter
from .observer import Observer, Silent
from .recorder import Recorder
from .scoring import Scorer
from .task import RolloutFn, Task
from .watchdog import STUCK_S, Watchdog

if TYPE_CHECKING:
    from .outcome import Outcome

RUNNING_EVERY_S = 0.25


@dataclass(slots=True)
class Taken:
    """What a journal holds already, as figures."""

    summary: Summary
    done: KeySet = field(default_factory=KeySet)

    def read(self, journal: Journal) -> Iterator[Outcome]:
        """Counts every stored rollout as it passes by; attempts beyond the plan's are not counted."""
        attempts, count = self.summary.plan.attempts, self.summary.add
        for outcome in journal.outcomes(self.done):
            if outcome.attempt < attempts:
                count(outcome)
            yield outcome


@dataclass(slots=True)
class Options:
    """What surrounds a run, beyond its plan. Everything has a default."""

    rows: int | None = None
    """How many rows `rows` will yield, when known: for progress and coverage."""
    dataset_rows: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    """`agent`, `sampling`, `score`: stored with each rollout, beside its row's."""
    scored: Sequence[str] = ()
    """The scores that rollouts come with, where they are scored elsewhere (in workers)."""
    limiter: Limiter | None = None
    """Shared with the model's signals when concurrency adapts."""
    spending: Spending | None = None
    """Shared with who hears what other jobs of the same run spend."""
    room: Callable[[], Awaitable[object]] | None = None
    """Waited for before each rollout: whoever takes them in has room for more."""
    step: int = 0
    """Of a training run: it is part of every rollout's key."""
    stuck_s: float = STUCK_S
    only: KeySet | None = None
    """Run only these keys of the selection."""
    taken: Taken | None = None
    """The journal's content, when it was read already and nothing in it has changed since."""


async def evaluate(
    plan: EvalPlan,
    rows: Iterable[Row],
    rollout_fn: RolloutFn | None,
    *,
    scorers: Sequence[Scorer] = (),
    journal: Journal | None = None,
    observer: Observer | None = None,
    stop: asyncio.Event | None = None,
    options: Options | None = None,
) -> Report:
    """Runs what the journal does not hold yet, and reports on everything. Without a `rollout_fn`, only reports.

    `stop` lets what is in flight finish; cancelling does not. Raises only for what concerns the whole run, such
    as a disk that cannot be written. `Report.stopped` says why a run ended before its total.
    """
    run = _Run(plan, rows, rollout_fn, scorers, journal, observer or Silent(), options or Options())
    opened = journal is not None and not journal.is_open
    if opened and journal is not None:
        journal.open(plan)
    try:
        return await run.go(stop)
    finally:
        if opened and journal is not None:
            journal.close()


class _Run:
    def __init__(
        self,
        plan: EvalPlan,
        rows: Iterable[Row],
        rollout_fn: RolloutFn | None,
        scorers: Sequence[Scorer],
        journal: Journal | None,
        observer: Observer,
        options: Options,
    ) -> None:
        self.plan = plan
        self.rollout_fn = rollout_fn
        self.scorers = scorers
        self.journal = journal
        self.observer = observer
        self.options = options
        self.done = KeySet()
        self.attempts = Attempts(
            rollout_fn,
            scorers,
            hashes=self.options.hashes,
            group_by=plan.group_by,
            sandbox=plan.sandbox,
            say=observer.stage,
        )
        self.stopped: str | None = None
        self.breaker = Breaker(plan.retry.breaker_after)
        self.spending = self.options.spending or Spending(plan)
        self.limiter = options.limiter or Limiter(plan.concurrency, adaptive=plan.adaptive)
        self.summary = Summary(plan, score_names=[*options.scored, *(s.name for s in scorers)])
        self.rows_seen = 0
        self.exhausted = False
        self.selected = options.rows if options.rows is not None else _length(rows)
        self._tasks = self._owed(rows)
        self._started = time.monotonic()
        self._shown = 0.0

    async def go(self, stop: asyncio.Event | None) -> Report:
        self._take_up()
        recorder = Recorder(self.journal, self._stored)
        total = (self.selected or 0) * self.plan.attempts
        self.observer.started(total, self.summary.completed)
        self.stopped = self.spending.exceeded()
        side = [asyncio.create_task(self._watchdog().watch())]
        if stop is not None:
            side.append(asyncio.create_task(self._wait_for(stop)))
        count = 0 if self.rollout_fn is None else self._width()
        lanes = [asyncio.create_task(self._lane(recorder)) for _ in range(count)]
        try:
            await self._finish(lanes, recorder)
            await recorder.drain()
        except BaseException:
            await self._cut(lanes)
            with suppress(asyncio.CancelledError, asyncio.TimeoutError):
                await asyncio.wait_for(recorder.drain(), LAST_GRACE_S)
            self._end(recorder)
            raise
        finally:
            await end_all(side, LAST_GRACE_S)
            recorder.close()
        if recorder.error is not None:
            self._end(recorder)
            raise _unwritten(recorder.error) from recorder.error
        return self._report()

    async def _cut(self, lanes: Iterable[asyncio.Task[None]]) -> None:
        """Ends the lanes now; code that goes on after its cancellation is named and not waited for."""
        self.attempts.cutting = True
        if await end_all(lanes, LAST_GRACE_S):
            left = self.attempts.whereabouts()
            self.observer.stage(f"not waiting for code that ignores its cancellation: {left}")

    def _width(self) -> int:
        """Lanes to start: no more than there can be tasks."""
        if self.stopped is not None:
            return 0
        if self.selected is None:
            return self.plan.concurrency
        return max(0, min(self.plan.concurrency, self.selected * self.plan.attempts - self.summary.completed))

    def _take_up(self) -> None:
        """Counts what the journal holds already."""
        if self.journal is None:
            return
        taken = self.options.taken
        if taken is None:
            taken = Taken(self.summary)
            deque(taken.read(self.journal), maxlen=0)
        self.done, self.summary = taken.done, taken.summary
        self.spending.add(self.summary.total_tokens, self.summary.total_cost_usd)

    def _owed(self, rows: Iterable[Row]) -> Iterator[Task]:
        only, session = self.options.only, uuid.uuid4().hex[:12]
        step, attempts, done = self.options.step, range(self.plan.attempts), self.done
        keys = RowKeys()
        for row in rows:
            self.rows_seen += 1
            if row.key is None or row.content_hash is None:
                found = row.content_hash or row_hash(row.data)  # of the row as read: nobody has had it in hand yet
                row = replace(row, content_hash=found, key=row.key or keys.of(row.data, found))
            row_key = row.key or ""
            for attempt in attempts:
                key = (step, row_key, attempt)
                if key not in done and (only is None or key in only):
                    yield Task(row, attempt, f"{row.index}-{attempt}-{session}", step)
        self.exhausted = True

    async def _finish(self, lanes: list[asyncio.Task[None]], recorder: Recorder) -> None:
        if not lanes:
            return
        left = self.plan.timeouts.run_s
        work = asyncio.gather(*lanes)
        lost: asyncio.Future[bool] = asyncio.ensure_future(recorder.failed.wait())
        either: set[asyncio.Future[Any]] = {work, lost}
        try:
            await asyncio.wait(either, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            if not lost.done():
                self.stopped = self.plan.timeouts.ran_out()
            await self._cut(lanes)
        finally:
            lost.cancel()
            if not work.done():
                work.cancel()
            work.add_done_callback(_seen)

    async def _lane(self, recorder: Recorder) -> None:
        limiter, spending, attempts, room = self.limiter, self.spending, self.attempts, self.options.room
        while self.stopped is None and recorder.error is None:
            if recorder.behind:
                await recorder.drain()
            if room is not None:
                await room()
            if not limiter.take():
                await limiter.acquire()
            try:
                self.stopped = self.stopped or spending.exceeded()
                if self.stopped is not None:
                    return
                task = next(self._tasks, None)
                if task is None:
                    return
                rollout = await attempts.one(task)
            finally:
                limiter.release()
            if attempts.cutting:
                return  # it comes back from a cancellation that it ignored: nobody waits for it any more
            recorder.put(rollout)
            spending.saw(rollout)
            self.stopped = self.stopped or self.breaker.saw(rollout) or spending.exceeded()

    def _stored(self, rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            self.summary.add(rollout)
            now = time.monotonic()
            running = None
            if now - self._shown >= RUNNING_EVERY_S:
                self._shown = now
                running = self.summary.running(rows=self.selected, duration_ms=self._duration_ms())
            self.observer.rollout(rollout, running)

    def _duration_ms(self) -> float:
        before = self.journal.duration_before() if self.journal is not None else 0.0
        return before + (time.monotonic() - self._started) * 1000

    def _report(self) -> Report:
        report = self.summary.report(
            rows=self.rows_seen if self.exhausted else self.selected,
            duration_ms=round(self._duration_ms(), 1),
            dataset_rows=self.options.dataset_rows,
            stopped=self.stopped,
        )
        if self.journal is not None:
            self.journal.session_took((time.monotonic() - self._started) * 1000)
            self.journal.write_report(report)
        self.observer.finished(report)
        return report

    def _end(self, recorder: Recorder) -> None:
        """Records in the session that the run was interrupted, if the disk still allows it."""
        if self.journal is not None and recorder.error is None:
            self.journal.session_took((time.monotonic() - self._started) * 1000)
            self.journal.end_session("cut off")

    def _watchdog(self) -> Watchdog:
        return Watchdog(
            self.attempts.active,
            self.observer.stage,
            limiter=self.limiter,
            stuck_s=self.options.stuck_s,
            loop_use=self.attempts.loop_use,
            pulse=self.journal.keep_pulse if self.journal is not None else None,
        )

    async def _wait_for(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stopped = self.stopped or "stopped on request"
        if running := len(self.attempts.active):
            self.observer.stage(f"waiting for {running} running rollouts: {self.attempts.whereabouts()}")


def _length(rows: Iterable[Row]) -> int | None:
    return len(rows) if isinstance(rows, Sequence) else None


def _seen(work: asyncio.Future[list[None]]) -> None:
    if not work.cancelled():
        work.exception()


def _unwritten(error: Exception) -> OsmosisError:
    """The error of a run whose journal failed. What is on disk by then stays, and a resume owes the rest."""
    if isinstance(error, OSError):
        why, hint = str(error), "free some disk space, then resume the run; finished rollouts are kept"
    else:
        why, hint = describe(error), "resume the run; finished rollouts are kept"
    return OsmosisError(f"the journal cannot be written: {why}", hint=hint)
