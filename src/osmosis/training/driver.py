"""The job's side of training: run the rollouts that the trainer asks for, store them and hand them back. Stored
rollouts of a step are never run again: a complete step is answered from the disk, one that was cut off is completed. So
whatever was killed (trainer, job, platform), the steps after the last checkpoint are the same again."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from osmosis.base.files import write_json
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.base.redact import Redactor
from osmosis.engine.agent import Agent
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import Task
from osmosis.errors import ModelError, ValidationError
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Rollout, RolloutStatus
from osmosis.records.run.rows import Row

from .failures import SILENT_STEPS, TrainerLost, cut_short, nothing_scored, nothing_to_learn, trainer_failure
from .metrics_file import MetricsFile
from .models import TrainedModel
from .protocol.batches import Batch
from .protocol.client import TrainerClient
from .protocol.messages import Checkpointed, Collect, Done, Event, Failed, Notice, StepMetrics
from .step_figures import count_sampled_tokens, no_signal_ratio, step_figures
from .step_journal import StepJournal, StoredStepRollout, step_folder_name

FIDELITY = ("sampled_tokens", "unscored_tokens", "twice", "lost", "repaired", "foreign_calls")


class TrainingListener(Protocol):
    def on_rollout(self, line: bytes) -> None:
        """A rollout is stored; `line` is its record without tokens."""

    def on_metrics(self, points: Sequence[MetricPoint]) -> None: ...

    def on_checkpoint(self, checkpoint: Checkpointed) -> None: ...

    def on_step(self, step: int) -> None: ...

    def on_message(self, text: str, *, warning: bool = False) -> None: ...

    async def wait_for_room(self) -> None:
        """Return when the platform can take more rollouts: no step begins before."""


@dataclass(slots=True)
class TrainingRun:
    plan: EvalPlan
    """How a rollout is run; attempts, rows and concurrency are each step's own."""
    read_rows: Callable[[Sequence[int]], Awaitable[list[Row]]]
    steps_dir: Path
    metrics: MetricsFile
    listener: TrainingListener
    scorers: Sequence[Scorer] = ()
    failure_rewards: Mapping[Category, float] = field(default_factory=dict)
    """Of failures that the policy causes; others have none, and teach nothing."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    redactor: Redactor | None = None


@dataclass(eq=False, repr=False)
class TrainingDriver:
    """Drive one life of the trainer. `run` returns how it ended; `stop` asks it to save a checkpoint and end."""

    _run: TrainingRun
    _client: TrainerClient
    _model: TrainedModel
    _agent: Agent
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _sent_at: dict[int, float] = field(default_factory=dict)
    """When the batch of each training step was sent that is not trained on yet."""
    _reported_ignored: set[str] = field(default_factory=set)
    _collecting: set[asyncio.Task[None]] = field(default_factory=set)
    _broken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def run(self) -> Done:
        """Follow events to the last one. Raise `TrainingRunFailed`, or `TrainerLost` to have the trainer restarted."""
        following = asyncio.create_task(self._follow())
        try:
            await wait_for_first(following, self._broken)
            if self._broken.done():
                await self._broken
            return await following
        finally:
            await end_tasks(following, *self._collecting)

    async def _follow(self) -> Done:
        try:
            async for numbered in self._client.events():
                event = numbered.event
                if isinstance(event, (Done, Failed)):
                    await self._client.acknowledge(numbered.number)
                if isinstance(event, Done):
                    self._report_fidelity()
                    return event
                await self._handle(event)
        except ModelError as error:
            raise TrainerLost(error.message) from error
        raise TrainerLost("the trainer has no more events")

    async def stop(self) -> None:
        """Give up rollouts in flight; the step's stored ones are kept for a resume."""
        self._stopping.set()
        try:
            await self._client.stop()
        except ModelError as error:
            raise TrainerLost(error.message) from error

    async def _handle(self, event: Event) -> None:
        listener = self._run.listener
        if isinstance(event, Collect):
            task = asyncio.create_task(self._collect(event))
            self._collecting.add(task)
            task.add_done_callback(self._end_collect)
        elif isinstance(event, StepMetrics):
            await listener.wait_for_room()  # supervised steps have no rollouts that would wait for it
            self._report_metrics(event)
        elif isinstance(event, Checkpointed):
            listener.on_checkpoint(event)
        elif isinstance(event, Notice):
            listener.on_message(f"step {event.step}: {event.message}")
        elif isinstance(event, Failed):
            raise trainer_failure(event)

    def _end_collect(self, task: asyncio.Task[None]) -> None:
        self._collecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._broken.done():
            self._broken.set_exception(error)

    async def _collect(self, collect: Collect) -> None:
        running = asyncio.create_task(self._run_rollouts(collect))
        interrupts = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._model.lost.wait())]
        try:
            await asyncio.wait([running, *interrupts], return_when=asyncio.FIRST_COMPLETED)
            if self._model.lost.is_set() and not running.done():
                raise TrainerLost("the trainer does not answer")
            if not running.done():
                return
            rollouts = running.result()
        finally:
            await end_tasks(running, *interrupts)
        if collect.kind == "train":
            if all(rollout.reward is None for rollout in rollouts):
                raise nothing_scored(collect.step, rollouts)
            ratios = [self._run.metrics.find("rollout/no_signal_ratio", step) for step in range(1, SILENT_STEPS + 1)]
            if collect.step <= SILENT_STEPS and all(ratio == 1.0 for ratio in ratios):
                raise nothing_to_learn(rollouts)
        batch = await asyncio.to_thread(
            lambda: Batch(collect.step, collect.kind, [part for rollout in rollouts for part in rollout.sequences()])
        )
        if collect.kind == "train":
            self._sent_at[collect.step] = time.monotonic()
        try:
            await self._client.send_batch(batch)
        except ValidationError:
            if not self._stopping.is_set():
                raise
        except ModelError as error:
            raise TrainerLost(error.message) from error
        await asyncio.to_thread(self._journal(collect).pack)

    def _journal(self, collect: Collect) -> StepJournal:
        run = self._run
        return StepJournal(
            run.steps_dir, collect.kind, collect.step, redactor=run.redactor, failure_rewards=run.failure_rewards
        )

    async def _run_rollouts(self, collect: Collect) -> list[StoredStepRollout]:
        run, kind, step = self._run, collect.kind, collect.step
        journal = self._journal(collect)
        rows = await run.read_rows(collect.rows)
        observer = _StepObserver(run.listener, journal)
        started = time.monotonic()
        report = await Evaluation(
            _step_plan(run.plan, collect),
            rows,
            _StepAgent(self._agent, self._model, journal, step_folder_name(kind, step)),
            model=self._model,
            scorers=run.scorers,
            journal=journal,
            observer=observer,
            hashes=run.hashes,
            step=step,
            wait_for_room=run.listener.wait_for_room,
        ).run()
        seconds = time.monotonic() - started
        if report.stopped:
            raise cut_short(step, report.stopped)
        rollouts = await asyncio.to_thread(journal.stored)
        figures = await asyncio.to_thread(step_figures, rollouts, kind)
        if kind == "train":
            figures["fidelity/foreign_calls"] = float(self._model.take_foreign_calls())
        if observer.count == len(rollouts) and kind == "train":  # none of them came from the disk
            tokens_per_s = count_sampled_tokens(rollouts) / max(seconds, 1e-6)
            figures |= {"perf/rollout_s": seconds, "perf/tokens_per_s": tokens_per_s}
        run.listener.on_metrics(run.metrics.add(step, figures))
        self._report_rollouts(collect, rollouts, observer.count)
        return rollouts

    def _report_metrics(self, event: StepMetrics) -> None:
        metrics, listener = self._run.metrics, self._run.listener
        values = {
            key: value
            for key, value in event.values.items()
            if not key.startswith(("rollout/", "eval/")) or metrics.find(key, event.step) is None
        }
        is_step = any(not key.startswith("eval/") for key in event.values)
        if is_step and "perf/update_s" in values and event.step in self._sent_at:
            sent = self._sent_at.pop(event.step)
            update_s = values["perf/update_s"]
            values["perf/wait_s"] = max(0.0, time.monotonic() - sent - update_s)
            values["perf/wait_ratio"] = values["perf/wait_s"] / max(values["perf/wait_s"] + update_s, 1e-6)
            if "train/trained_tokens" in values:
                values["perf/trained_tokens_per_s"] = values["train/trained_tokens"] / max(update_s, 1e-6)
        listener.on_metrics(metrics.add(event.step, values))
        if is_step:
            listener.on_step(event.step)
        for alarm in metrics.new_alarms():
            listener.on_message(alarm, warning=True)

    def _report_fidelity(self) -> None:
        metrics = self._run.metrics
        totals = {key: metrics.total(f"fidelity/{key}") for key in FIDELITY}
        trained = metrics.total("train/trained_tokens")
        if not totals["sampled_tokens"]:
            return
        write_json(self._run.steps_dir.parent / "fidelity.json", {**totals, "trained_tokens": trained}, indent=1)
        share = trained / totals["sampled_tokens"] * 100
        self._run.listener.on_message(
            f"fidelity: {totals['sampled_tokens']:.0f} tokens sampled, {trained:.0f} trained on ({share:.1f} %), "
            f"{totals['unscored_tokens']:.0f} of rollouts without a reward, {totals['twice']:.0f} twice, "
            f"{totals['lost']:.0f} lost, {totals['repaired']:.0f} calls spelled as sampled instead of as rendered, "
            f"{totals['foreign_calls']:.0f} calls outside of rollouts, {metrics.total('rollout/forks'):.0f} forks"
        )

    def _report_rollouts(self, collect: Collect, rollouts: Sequence[StoredStepRollout], new: int) -> None:
        listener, is_train = self._run.listener, collect.kind == "train"
        name = f"step {collect.step}" if is_train else f"validation after step {collect.step}"
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        mean = f"mean reward {sum(rewards) / len(rewards):.3f}" if rewards else "no reward"
        if rewards and len(rewards) < len(rollouts):
            mean += f" of the {len(rewards)} with one"
        resumed = f", {len(rollouts) - new} of them from before" if len(rollouts) > new else ""
        silent = f", {no_signal_ratio(rollouts) * 100:.0f} % of rows without signal" if is_train else ""
        listener.on_message(f"{name}: {len(rollouts)} rollouts{resumed}, {mean}{silent}")
        if ignored := self._model.ignored - self._reported_ignored:
            self._reported_ignored |= ignored
            names = ", ".join(sorted(ignored))
            listener.on_message(f"the rollout asks for {names}, which has no effect while training", warning=True)


def _step_plan(plan: EvalPlan, collect: Collect) -> EvalPlan:
    """Return the plan of a step, without a limit of failures in a row. All rollouts of a step run at once, and those
    that overrun their time all end at the same moment."""
    count = len(collect.rows) * collect.samples_per_row
    return plan.model_copy(
        update={
            "attempts": collect.samples_per_row,
            "concurrency": count,
            "selection": Selection(rows=list(collect.rows)),
            "retry": plan.retry.model_copy(update={"breaker_after": count + 1}),
        }
    )


class _StepAgent:
    """Keeps the tokens of each rollout beside it."""

    def __init__(self, agent: Agent, model: TrainedModel, journal: StepJournal, part_of_run: str) -> None:
        self._agent = agent
        self._model = model
        self._journal = journal
        self._part_of_run = part_of_run

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        self._model.start(task.rollout_id, self._part_of_run)
        rollout = await self._agent.run(task, model)
        conversation = self._model.take(task.rollout_id)
        if self._model.lost.is_set() and rollout.status is RolloutStatus.FAILED:
            await asyncio.Event().wait()  # this step is about to be cut off: see `_collect`
        self._journal.keep(task.rollout_id, conversation)
        return rollout


class _StepObserver(Observer):
    def __init__(self, listener: TrainingListener, journal: StepJournal) -> None:
        self._listener = listener
        self._journal = journal
        self.count = 0

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self.count += 1
        self._listener.on_rollout(self._journal.line(rollout))

    def stage(self, text: str) -> None:
        self._listener.on_message(text, warning=True)
