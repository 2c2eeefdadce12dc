import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

from osmosis.datasets.keys import RowKeys
from osmosis.datasets.scan import read_groups, row_hash
from osmosis.engine.agent import Agent
from osmosis.engine.journal import Journal, Recorder
from osmosis.engine.limits import Breaker, Limiter, Spending
from osmosis.engine.rollout_model import RolloutModel, build_rollout
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import LoopUse, Task
from osmosis.engine.watchdog import STUCK_S, Watchdog
from osmosis.errors import OsmosisError
from osmosis.llm.cache import BranchModel
from osmosis.llm.model import Model
from osmosis.metrics.summary import Summary
from osmosis.metrics.warnings import answer_issue
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Failure, Phase, Rollout, RolloutStatus, Score, Usage, user_metrics
from osmosis.records.run.rows import Key, Row
from osmosis.sdk.classify import describe, failure_of, overrun, self_cancelled
from osmosis.sdk.messages import changed_prompts
from osmosis.sdk.sandbox import begin_sandbox, opening_of
from osmosis.sdk.user_code import (
    LAST_GRACE_S,
    LimitReached,
    left_behind,
    loop_user,
    retrieve,
    stop_tasks,
    tool_time_limit,
)

_NAMED = 3


@dataclass(eq=False)
class Attempts:
    plan: EvalPlan
    agent: Agent | None
    model: Model | None
    scorers: Sequence[Scorer]
    _: KW_ONLY
    hashes: Mapping[str, str] | None = None
    say: Callable[[str], None]
    active: set[Task] = field(default_factory=set)
    loop_use: LoopUse = field(default_factory=LoopUse)
    cutting: bool = False
    left_behind: int = 0

    async def run(self, task: Task) -> Rollout:
        if self.plan.branch is not None:
            task.row = self.plan.branch.change_row(task.row)
            changed_prompts.set(self.plan.branch.texts)
        rollout = await self._run_once(task)
        for number in range(1, self.plan.retry.rollouts + 1):
            if rollout.failure is None or self.cutting:
                break
            self.say(f"{task.name} failed ({rollout.failure.category.value}); run again, {number}")
            spent, users = rollout.usage, rollout.user_usage
            again = Task(task.row, task.attempt, f"{task.rollout_id}-{number}", task.step, on_enter=task.on_enter)
            rollout = await self._run_once(again)
            rollout.usage, rollout.metrics["retries"] = spent + rollout.usage, float(number)
            if users is not None:
                rollout.metrics |= user_metrics(users + (rollout.user_usage or Usage()))
        return rollout

    async def _run_once(self, task: Task) -> Rollout:
        self.active.add(task)
        task.loop_use = self.loop_use
        loop_user.set(task)
        left_behind.set(task.left_behind)
        tool_time_limit.set(self.plan.timeouts.tool_s)
        sandbox = begin_sandbox(lambda: opening_of(self.plan.sandbox)())
        try:
            rollout = await self._run_agent(task)
            if isinstance(self.model, BranchModel):
                self.model.finish(task.rollout_id, rollout)
            if self.scorers and rollout.status is RolloutStatus.SUCCESS:
                task.enter("score")
                scores = await self._score(rollout, task.row)
                # In the order given, and before a reward of the rollout's own.
                rollout.scores = {**{score.name: score for score in scores}, **rollout.scores}
        finally:
            self.active.discard(task)
            if sandbox.detach():
                await sandbox.close()
        for name in task.left_behind:
            self.left_behind += 1
            count = f" ({self.left_behind} in this run)" if self.left_behind > 1 else ""
            self.say(f"{task.name}: {name} ignored its cancellation and was left behind{count}")
        row = task.row
        rollout.step, rollout.row_key, rollout.row_index = task.step, row.key, row.index
        if rollout.status is RolloutStatus.SUCCESS:
            rollout.answer_issue = answer_issue(rollout.messages, rollout.finish_reason)
        if self.plan.group_by:
            rollout.groups = read_groups(row.data, self.plan.group_by)
        if self.hashes:
            rollout.hashes = {**self.hashes, "row": row.content_hash or row_hash(row.data)}
        return rollout

    def describe_active(self) -> str:
        now = time.monotonic()
        longest = sorted(self.active, key=lambda task: task.since)
        parts = [f"{task.name} in {task.stage!r} for {now - task.since:.0f} s" for task in longest[:_NAMED]]
        if len(longest) > _NAMED:
            parts.append(f"{len(longest) - _NAMED} more")
        return ", ".join(parts)

    async def _run_agent(self, task: Task) -> Rollout:
        assert self.agent is not None
        model = RolloutModel(self.model, task, self.plan)
        task.enter("agent")
        try:
            return await model.deadline.run(self.agent.run(task, model), "the agent")
        except asyncio.CancelledError:
            if self.cutting:
                raise
            failure: Failure | None = self_cancelled()
        except LimitReached:
            failure = None
        except Exception as error:  # noqa: BLE001 - one rollout, and not the others: an agent may raise anything
            failure = _overrun(model, task) if model.deadline.fired else failure_of(error, Phase.AGENT)
        return build_rollout(task, model, failure=failure)

    async def _score(self, rollout: Rollout, row: Row) -> list[Score]:
        if len(self.scorers) == 1:
            return list(await self.scorers[0].score(rollout, row))
        results = await asyncio.gather(*(scorer.score(rollout, row) for scorer in self.scorers))
        return [score for scores in results for score in scores]


def _overrun(model: RolloutModel, task: Task) -> Failure:
    failure = overrun(model.deadline.seconds or 0.0)
    if task.left_behind:
        failure.message += ", ignored its cancellation, and was left behind"
        failure.fix = "let asyncio.CancelledError pass: catch Exception, not BaseException, around what is awaited"
    elif task.held_s:
        failure.message += f", and blocked the event loop for {task.held_s:.1f} s"
        failure.fix = "await what takes long, or hand it to asyncio.to_thread"
    return failure


def failed_rollout(task: Task, failure: Failure) -> Rollout:
    return Rollout(
        rollout_id=task.rollout_id,
        row_index=task.row.index,
        attempt=task.attempt,
        status=RolloutStatus.FAILED,
        messages=task.row.messages(),
        failure=failure,
    )


RUNNING_EVERY_S = 0.25


class Observer:
    """Receives the events of a run, on the event loop; must return quickly. This one ignores them."""

    def started(self, total: int, done: int) -> None:
        """Receive the start: `total` rollouts will exist, `done` of them exist already."""

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        """Receive a stored rollout; `running` has the figures so far a few times a second, and is None in between."""

    def stage(self, text: str) -> None:
        """Receive a line for a person: a pause, a stuck rollout, a stop."""

    def finished(self, report: Report) -> None: ...


@dataclass(slots=True)
class StoredFigures:
    summary: Summary
    done: set[Key] = field(default_factory=set)

    def read(self, journal: Journal) -> Iterator[Rollout]:
        attempts, add = self.summary.plan.attempts, self.summary.add
        for rollout in journal.rollouts(self.done):
            if rollout.attempt < attempts:
                add(rollout)
            yield rollout


@dataclass(eq=False)
class Evaluation:
    plan: EvalPlan
    rows: Iterable[Row]
    agent: Agent | None  # without one, nothing is run, only reported
    model: Model | None = None
    scorers: Sequence[Scorer] = ()
    journal: Journal | None = None  # stores the rollouts; those that it has already are not run again
    observer: Observer = field(default_factory=Observer)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    selected: int | None = None  # number of `rows`, where they are no sequence and it is known
    dataset_rows: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    score_names: Sequence[str] = ()  # names of scores that rollouts come with, beside those of `scorers`
    limiter: Limiter | None = None
    spending: Spending | None = None
    wait_for_room: Callable[[], Awaitable[object]] | None = None
    step: int = 0
    stuck_s: float = STUCK_S
    only: Collection[Key] | None = None  # keys of the rollouts to run; None: all
    stored: StoredFigures | None = None  # content of the journal, when it was read already and has not changed since

    async def run(self) -> Report:
        journal = self.journal
        if journal is None or journal.is_open:
            return await _Loop(self).run()
        journal.open(self.plan)
        try:
            return await _Loop(self).run()
        finally:
            journal.close()


class _Loop:
    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.plan = plan = evaluation.plan
        self.journal = evaluation.journal
        self.observer = evaluation.observer
        self.stopped: str | None = None
        self.attempts = Attempts(
            plan,
            evaluation.agent,
            evaluation.model,
            evaluation.scorers,
            hashes=evaluation.hashes,
            say=evaluation.observer.stage,
        )
        self.breaker = Breaker(plan.retry.breaker_after)
        self.spending = evaluation.spending or Spending(plan)
        self.limiter = evaluation.limiter or Limiter(plan.concurrency, adaptive=plan.adaptive)
        names = [*evaluation.score_names, *(scorer.name for scorer in evaluation.scorers)]
        self.stored = StoredFigures(Summary(plan, score_names=names))
        self.rows_seen = 0
        self.exhausted = False
        rows = evaluation.rows
        length = len(rows) if isinstance(rows, Sequence) else None
        self.selected = length if evaluation.selected is None else evaluation.selected
        self._tasks = self._iterate_owed()
        self._started = time.monotonic()
        self._running_at = 0.0

    async def run(self) -> Report:
        if self.journal is not None:
            if self.evaluation.stored is not None:
                self.stored = self.evaluation.stored
            else:
                for _ in self.stored.read(self.journal):
                    pass
            self.spending.add(self.stored.summary.total_tokens, self.stored.summary.total_cost_usd)
        recorder = Recorder(self.journal, self._count)
        self.observer.started((self.selected or 0) * self.plan.attempts, self.stored.summary.completed)
        self.stopped = self.spending.exceeded()
        beside = (self._watchdog(recorder).watch(), self._stop_on(self.evaluation.stop))
        side = [asyncio.create_task(work) for work in beside]
        lanes = [asyncio.create_task(self._run_lane(recorder)) for _ in range(self._width())]
        try:
            await self._finish(lanes, recorder)
            await recorder.drain()
        except BaseException:
            await self._cut(lanes)
            with suppress(asyncio.CancelledError, asyncio.TimeoutError):
                await asyncio.wait_for(recorder.drain(), LAST_GRACE_S)
            self._end_session(recorder)
            raise
        finally:
            await stop_tasks(side, LAST_GRACE_S)
            recorder.close()
        if recorder.error is not None:
            self._end_session(recorder)
            raise _journal_error(recorder.error) from recorder.error
        report = self.stored.summary.report(
            rows=self.rows_seen if self.exhausted else self.selected,
            duration_ms=round(self._duration_ms(), 1),
            dataset_rows=self.evaluation.dataset_rows,
            stopped=self.stopped,
        )
        if self.journal is not None:
            self.journal.session_took((time.monotonic() - self._started) * 1000)
            self.journal.write_report(report)
        self.observer.finished(report)
        return report

    def _width(self) -> int:
        if self.evaluation.agent is None or self.stopped is not None:
            return 0
        if self.selected is None:
            return self.plan.concurrency
        return max(0, min(self.plan.concurrency, self.selected * self.plan.attempts - self.stored.summary.completed))

    def _iterate_owed(self) -> Iterator[Task]:
        only, step, session = self.evaluation.only, self.evaluation.step, uuid.uuid4().hex[:12]
        keys = RowKeys()
        for row in self.evaluation.rows:
            self.rows_seen += 1
            if row.key is None or row.content_hash is None:
                content_hash = row.content_hash or row_hash(row.data)  # before user code can change the row
                row = replace(row, content_hash=content_hash, key=row.key or keys.of(row.data, content_hash))
            for attempt in range(self.plan.attempts):
                key = (step, row.key or "", attempt)
                if key not in self.stored.done and (only is None or key in only):
                    yield Task(row, attempt, f"{row.index}-{attempt}-{session}", step)
        self.exhausted = True

    async def _run_lane(self, recorder: Recorder) -> None:
        while self.stopped is None and recorder.error is None:
            if recorder.behind:
                await recorder.drain()
            if self.evaluation.wait_for_room is not None:
                await self.evaluation.wait_for_room()
            await self.limiter.acquire()
            try:
                self.stopped = self.stopped or self.spending.exceeded()
                task = next(self._tasks, None) if self.stopped is None else None
                if task is None:
                    return
                rollout = await self.attempts.run(task)
            finally:
                self.limiter.release()
            if self.attempts.cutting:
                return  # it ignored its cancellation: its result is discarded
            recorder.put(rollout)
            self.spending.add_rollout(rollout)
            self.stopped = self.stopped or self.breaker.check(rollout) or self.spending.exceeded()

    async def _finish(self, lanes: list[asyncio.Task[None]], recorder: Recorder) -> None:
        if not lanes:
            return
        work = asyncio.gather(*lanes)
        journal_failed: asyncio.Future[bool] = asyncio.ensure_future(recorder.failed.wait())
        either: set[asyncio.Future[Any]] = {work, journal_failed}
        try:
            await asyncio.wait(either, timeout=self.plan.timeouts.run_s, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
                return
            if not journal_failed.done():
                self.stopped = self.plan.timeouts.ran_out()
            await self._cut(lanes)
        finally:
            journal_failed.cancel()
            if not work.done():
                work.cancel()
            work.add_done_callback(retrieve)

    async def _cut(self, lanes: Iterable[asyncio.Task[None]]) -> None:
        self.attempts.cutting = True
        if await stop_tasks(lanes, LAST_GRACE_S):
            in_flight = self.attempts.describe_active()
            self.observer.stage(f"not waiting for code that ignores its cancellation: {in_flight}")

    def _count(self, rollouts: list[Rollout]) -> None:
        for rollout in rollouts:
            self.stored.summary.add(rollout)
            now = time.monotonic()
            running = None
            if now - self._running_at >= RUNNING_EVERY_S:
                self._running_at = now
                running = self.stored.summary.running(rows=self.selected, duration_ms=self._duration_ms())
            self.observer.rollout(rollout, running)

    def _duration_ms(self) -> float:
        before = self.journal.duration_before() if self.journal is not None else 0.0
        return before + (time.monotonic() - self._started) * 1000

    def _end_session(self, recorder: Recorder) -> None:
        if self.journal is not None and recorder.error is None:
            self.journal.session_took((time.monotonic() - self._started) * 1000)
            self.journal.end_session("cut off")

    def _watchdog(self, recorder: Recorder) -> Watchdog:
        return Watchdog(
            self.attempts.active,
            self.observer.stage,
            limiter=self.limiter,
            stuck_s=self.evaluation.stuck_s,
            loop_use=self.attempts.loop_use,
            pulse=self.journal.keep_pulse if self.journal is not None else None,
            run_s=self.plan.timeouts.run_s,
            on_end=lambda: self._save(recorder),
        )

    def _save(self, recorder: Recorder) -> None:
        with suppress(Exception):  # from a thread, before the process ends: whatever can still be written
            if self.journal is not None and (rollouts := recorder.take()):
                self.journal.append_all(rollouts)
            self._end_session(recorder)

    async def _stop_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.stopped = self.stopped or "stopped on request"
        if running := len(self.attempts.active):
            self.observer.stage(f"waiting for {running} running rollouts: {self.attempts.describe_active()}")


def _journal_error(error: Exception) -> OsmosisError:
    if isinstance(error, FileNotFoundError):
        reason, hint = str(error), "the run stops here: put the file back and resume it, or start it again"
    elif isinstance(error, OSError):
        reason, hint = str(error), "free some disk space, then resume the run; finished rollouts are kept"
    else:
        reason, hint = describe(error), "resume the run; finished rollouts are kept"
    return OsmosisError(f"the journal cannot be written: {reason}", hint=hint)
