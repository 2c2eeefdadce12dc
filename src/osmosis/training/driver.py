"""The job's side of training: the trainer says which rollouts a step needs, and these are run, stored and handed back.

The rollouts of a step go through the engine's one loop, as an eval's do, over whatever `RolloutFn` there is. What is
stored of a step is never run again: a step whose rollouts are all there is answered from the disk, one that was cut off
is completed. So whoever was killed (trainer, job, platform), the steps after the last checkpoint are the same again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from osmosis.base.redact import Redactor
from osmosis.base.tasks import end
from osmosis.engine.evaluate import Options, evaluate
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import RolloutFn, Task
from osmosis.errors import ModelError, ValidationError
from osmosis.records.dataset import Row
from osmosis.records.plan import EvalPlan, Selection
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout, RolloutStatus
from osmosis.records.run import MetricPoint
from osmosis.training.link import Batch, Checkpointed, Collect, Done, Event, Failed, Notice, StepMetrics, TrainerLink

from .curves import Curves
from .failures import SILENT_STEPS, TrainerLost, cut_short, nothing_scored, nothing_to_learn, of_trainer
from .step_figures import no_signal, spoken_tokens, step_figures
from .step_journal import StepJournal, StoredStepRollout, name_of
from .trained_model import TrainedModel

ReadRows = Callable[[Sequence[int]], Awaitable[list[Row]]]


class Listener(Protocol):
    """Who is told how training goes, on the event loop."""

    def rollout(self, line: bytes) -> None:
        """A rollout is stored: its record as one line, without tokens."""
        ...

    def points(self, points: Sequence[MetricPoint]) -> None: ...

    def checkpoint(self, saved: Checkpointed) -> None: ...

    def step_done(self, step: int) -> None:
        """The weights are those of this step now."""
        ...

    def say(self, text: str, *, alarm: bool = False) -> None: ...

    async def room(self) -> None:
        """Returns when whoever takes all this in has room for more: nothing is begun before."""
        ...


@dataclass(slots=True)
class TrainingRun:
    """What surrounds the driver, and stays the same however often the trainer is started."""

    plan: EvalPlan
    """How a rollout is run; attempts, rows and concurrency are each step's own."""
    read_rows: ReadRows
    """Rows by their indices, each with its key."""
    steps: Path
    """Where the rollouts of steps are kept."""
    curves: Curves
    listener: Listener
    scorers: Sequence[Scorer] = ()
    """Beside the reward that a rollout has of its own."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    redactor: Redactor | None = None


class TrainingDriver:
    """One life of the trainer. `run` returns how it ended; `stop` asks it to save a checkpoint and end."""

    def __init__(self, run: TrainingRun, link: TrainerLink, model: TrainedModel, rollout: RolloutFn) -> None:
        self._run = run
        self._link = link
        self._model = model
        self._rollout = rollout
        self._stopping = asyncio.Event()
        self._sent_at = time.monotonic()
        self._told_ignored: set[str] = set()
        self._training: int | None = None
        """The step whose rollouts the trainer has, and whose figures it has not told yet."""

    async def run(self) -> Done:
        """Until the last event. Raises `TrainingFailed`; `TrainerLost` when the trainer is to be started again."""
        try:
            async for numbered in self._link.events():
                event = numbered.event
                if isinstance(event, (Done, Failed)):
                    await self._link.acknowledge(numbered.number)
                if isinstance(event, Done):
                    return event
                await self._deal_with(event)
        except ModelError as error:
            raise TrainerLost(error.message) from error
        raise TrainerLost("the trainer has no more events")

    async def stop(self) -> None:
        """Rollouts in flight are given up; what is stored of the step is kept for a resume."""
        self._stopping.set()
        try:
            await self._link.stop()
        except ModelError as error:
            raise TrainerLost(error.message) from error

    async def _deal_with(self, event: Event) -> None:
        if isinstance(event, StepMetrics):
            await self._run.listener.room()  # steps that imitate have no rollouts that would wait for it
        if isinstance(event, Collect):
            await self._collect(event)
        elif isinstance(event, StepMetrics):
            self._metrics(event)
        elif isinstance(event, Checkpointed):
            self._run.listener.checkpoint(event)
        elif isinstance(event, Notice):
            self._run.listener.say(f"step {event.step}: {event.message}")
        elif isinstance(event, Failed):
            raise of_trainer(event)

    async def _collect(self, wanted: Collect) -> None:
        """The rollouts of a step, to the trainer; nothing when a stop comes first."""
        collecting = asyncio.create_task(self._collected(wanted))
        others = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._model.lost.wait())]
        try:
            await asyncio.wait([collecting, *others], return_when=asyncio.FIRST_COMPLETED)
            if self._model.lost.is_set() and not collecting.done():
                raise TrainerLost("the trainer does not answer")
            if not collecting.done():
                return
            stored = collecting.result()
        finally:
            await end(collecting, *others)
        self._check(wanted, stored)
        batch = Batch(step=wanted.step, kind=wanted.kind, sequences=[s for one in stored for s in one.sequences()])
        try:
            await self._link.send_batch(batch)
        except ValidationError:
            if not self._stopping.is_set():
                raise
        self._sent_at = time.monotonic()
        await asyncio.to_thread(StepJournal(self._run.steps, wanted.kind, wanted.step).pack)
        if wanted.kind == "train":
            self._training = wanted.step

    async def _collected(self, wanted: Collect) -> list[StoredStepRollout]:
        run, kind, step = self._run, wanted.kind, wanted.step
        journal = StepJournal(run.steps, kind, step, redactor=run.redactor)
        self._model.begin(name_of(kind, step))
        rows = await run.read_rows(wanted.rows)
        told = _Told(run.listener, journal)
        started = time.monotonic()
        report = await evaluate(
            _plan_of(run.plan, wanted),
            rows,
            lambda task: self._one(task, journal),
            scorers=run.scorers,
            journal=journal,
            observer=told,
            options=Options(rows=len(rows), hashes=run.hashes, step=step, room=run.listener.room),
        )
        took = time.monotonic() - started
        if report.stopped:
            raise cut_short(step, report.stopped)
        stored = await asyncio.to_thread(journal.stored)
        figures = step_figures(stored, kind)
        if told.new == len(stored) and kind == "train":  # not from the disk, nor in part
            figures |= {"perf/rollout_s": took, "perf/tokens_per_s": spoken_tokens(stored) / max(took, 1e-6)}
        run.listener.points(run.curves.add(step, figures))
        self._say(wanted, stored, told.new)
        return stored

    async def _one(self, task: Task, journal: StepJournal) -> Rollout:
        """One rollout, and its tokens into the journal. One that failed because the trainer is gone is run again."""
        rollout = await self._rollout(task)
        conversation = self._model.take(task.rollout_id)
        if self._model.lost.is_set() and rollout.status is RolloutStatus.FAILED:
            await asyncio.Event().wait()  # this step is about to be cut off: see `_collect`
        journal.keep(task.rollout_id, conversation)
        return rollout

    def _check(self, wanted: Collect, stored: Sequence[StoredStepRollout]) -> None:
        """Raises `TrainingFailed` for a step, or first steps, of which nothing can be learned."""
        if wanted.kind != "train":
            return
        if all(one.reward is None for one in stored):
            raise nothing_scored(wanted.step, stored)
        silent = [self._run.curves.at("rollout/no_signal_ratio", step) for step in range(1, SILENT_STEPS + 1)]
        if wanted.step <= SILENT_STEPS and all(ratio == 1.0 for ratio in silent):
            raise nothing_to_learn([one.reward for one in stored])

    def _metrics(self, event: StepMetrics) -> None:
        """What the trainer measured. Of what both know, the job's figure counts: it saw every rollout."""
        curves, listener = self._run.curves, self._run.listener
        values = {
            key: value
            for key, value in event.values.items()
            if not key.startswith(("rollout/", "eval/")) or curves.at(key, event.step) is None
        }
        if "perf/update_s" in values and event.step == self._training:
            values["perf/wait_s"] = max(0.0, time.monotonic() - self._sent_at - values["perf/update_s"])
        listener.points(curves.add(event.step, values))
        if event.step == self._training or "train/loss" in event.values:  # a step that imitates has no rollouts
            self._training = None
            listener.step_done(event.step)
        for alarm in curves.new_alarms():
            listener.say(alarm, alarm=True)

    def _say(self, wanted: Collect, stored: Sequence[StoredStepRollout], new: int) -> None:
        what = f"step {wanted.step}" if wanted.kind == "train" else f"validation after step {wanted.step}"
        rewards = [one.reward for one in stored if one.reward is not None]
        mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
        again = len(stored) - new
        kept = f", {again} of them from before" if again else ""
        silent = f", {no_signal(stored) * 100:.0f} % of rows without signal" if wanted.kind == "train" else ""
        self._run.listener.say(f"{what}: {len(stored)} rollouts{kept}, {mean}{silent}")
        if new_ones := self._model.ignored - self._told_ignored:
            self._told_ignored |= new_ones
            names = ", ".join(sorted(new_ones))
            self._run.listener.say(f"the rollout asks for {names}, which has no effect while training", alarm=True)


def _plan_of(plan: EvalPlan, wanted: Collect) -> EvalPlan:
    """Everything at once. Rollouts that overrun their time all end at the same moment, so no number of failures in a
    row says anything before the step is over."""
    at_once = len(wanted.rows) * wanted.samples_per_row
    return plan.model_copy(
        update={
            "attempts": wanted.samples_per_row,
            "concurrency": at_once,
            "selection": Selection(rows=list(wanted.rows)),
            "retry": plan.retry.model_copy(update={"breaker_after": at_once + 1}),
        }
    )


class _Told:
    """The engine's observer of one step."""

    def __init__(self, listener: Listener, journal: StepJournal) -> None:
        self._listener = listener
        self._journal = journal
        self.new = 0

    def started(self, total: int, done: int) -> None: ...

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self.new += 1
        self._listener.rollout(self._journal.line(rollout))

    def stage(self, text: str) -> None:
        self._listener.say(text, alarm=True)

    def finished(self, report: Report) -> None: ...
