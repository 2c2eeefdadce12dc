"""The rollouts of a step, from the first to the batch; stored ones are never run again."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Protocol

from osmosis.base.processes import end_tasks
from osmosis.base.redact import Redactor
from osmosis.engine.agent import Agent
from osmosis.engine.evaluate import Evaluation, Observer
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.scoring import Scorer
from osmosis.engine.task import Task
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import EvalPlan, Selection
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Rollout, RolloutStatus
from osmosis.records.run.rows import Row
from osmosis.serve.client.program_agent import grade_ended
from osmosis.training.failures import cut_short
from osmosis.training.groups import CUT_OFF, Group, GroupLedger, StragglerAgent
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.messages import Checkpointed, Collect, Kind
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.step_journal import (
    SEALED,
    MetricsFile,
    StepJournal,
    StoredStepRollout,
    count_sampled_tokens,
    environment_figures,
    find_reward,
    step_figures,
    step_folder_name,
)


class TrainingListener(Protocol):
    def on_rollout(self, line: bytes) -> None:
        """Take a rollout that was stored; `line` is its record without tokens."""

    def on_metrics(self, points: Sequence[MetricPoint]) -> None: ...

    def on_checkpoint(self, checkpoint: Checkpointed) -> None: ...

    def on_step(self, step: int) -> None: ...

    def on_message(self, text: str, *, warning: bool = False) -> None: ...

    def on_alarm(self, text: str) -> None: ...

    async def wait_for_room(self) -> None:
        """Return when the platform can take more rollouts: no step begins before."""


@dataclass(slots=True)
class TrainingRun:
    plan: EvalPlan  # how a rollout is run; attempts, rows and concurrency are each step's own
    trainer_plan: TrainerPlan
    read_rows: Callable[[Sequence[int]], Awaitable[list[Row]]]
    steps_dir: Path
    metrics: MetricsFile
    listener: TrainingListener
    scorers: Sequence[Scorer] = ()
    failure_rewards: Mapping[Category, float] = field(default_factory=dict)
    """The failures that the policy causes; others have no reward, and teach nothing."""
    sealed: Agent | None = None  # Grades the rollouts of validation apart
    hashes: Mapping[str, str] = field(default_factory=dict)
    redactor: Redactor | None = None


@dataclass(slots=True)
class StepRollouts:
    rows: list[int]  # One for each group, in their order
    rollouts: list[StoredStepRollout]  # In the order of groups; attempts of a second group of a row go on counting
    figures: dict[str, float]
    new: int  # how many of them were run now, and not found on the disk


class Collector:
    """Runs the rollouts of the steps that the trainer waits for. `close` it: groups may still be running."""

    def __init__(self, run: TrainingRun, model: TrainedModel, agent: Agent) -> None:
        self._run, self._model, self._agent = run, model, agent
        self._trainer_plan = run.trainer_plan
        self._ledger = GroupLedger(run.steps_dir, run.trainer_plan)
        self._open: set[int] = set()  # steps that do not have their groups yet
        self._journals: dict[int, StepJournal] = {}
        self._begun: set[int] = set()  # steps whose missing rollouts run, or have run
        self._writers: Counter[int] = Counter()
        self._rewards: dict[Group, dict[int, float | None]] = defaultdict(dict)  # all stored of a group, by attempt
        self._new: Counter[Group] = Counter()
        self._running: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._folders = asyncio.Lock()

    async def close(self) -> None:
        await end_tasks(*self._running)

    async def collect_validation(self, collect: Collect) -> StepRollouts:
        journal = self._journal("validation", collect.step)
        observer = _StepObserver(self._run.listener, journal)
        agent: Agent = _StepAgent(self._agent, self._model, journal, step_folder_name("validation", collect.step))
        if self._run.sealed is not None:
            agent = _SealedAgent(agent, self._run.sealed)
        await self._evaluate(agent, collect.step, collect.samples_per_row, collect.rows, journal, observer)
        rollouts = await asyncio.to_thread(journal.stored)
        figures = await asyncio.to_thread(step_figures, rollouts, "validation")
        figures |= environment_figures(self._trainer_plan, rollouts, "validation")
        await asyncio.to_thread(journal.pack)
        if self._run.sealed is not None and (
            missing := sum(rollout.failure is None and SEALED not in rollout.metrics for rollout in rollouts)
        ):
            text = f"validation after step {collect.step}: the sealed grader gave {missing} rollouts no score"
            self._run.listener.on_message(text, warning=True)
        return StepRollouts(collect.rows, rollouts, figures, observer.count)

    async def collect_training(self, collect: Collect) -> StepRollouts:
        step, ledger = collect.step, self._ledger
        started = time.monotonic()
        self._open.add(step)
        if step not in ledger.steps:
            plan, rows = self._trainer_plan, collect.rows
            if plan.oversample > 1 or plan.replace_no_signal > 0 or plan.curriculum:
                rows = ledger.draw(step, ledger.count_due(sorted(self._open)))
            ledger.begin(step, rows, version=min(self._open) - 1)
        async with self._folders:
            await self._load(step)
        while not self._settle(step):
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        self._open.discard(step)
        self._report_change()
        groups = ledger.steps[step].trained
        waiting = sum(group.step <= step for group in ledger.list_unused())
        rollouts = await asyncio.to_thread(self._read, groups)
        figures = await asyncio.to_thread(self._measure, step, groups, rollouts)
        if self._trainer_plan.oversample > 1:
            figures["rollout/waiting_groups"] = float(waiting)
        new = sum(self._new[group] for group in groups)
        if new == len(rollouts):
            seconds = time.monotonic() - started
            figures["perf/rollout_s"] = seconds
            figures["perf/tokens_per_s"] = count_sampled_tokens(rollouts) / max(seconds, 1e-6)
        return StepRollouts([group.row for group in groups], rollouts, figures, new)

    async def pack(self) -> None:
        async with self._folders:
            unused = {group.step for group in self._ledger.list_unused()}
            for step, journal in list(self._journals.items()):
                if step not in unused and not self._writers[step]:
                    await asyncio.to_thread(journal.pack)

    async def _load(self, step: int) -> None:
        groups = [group for group in self._ledger.list_unused() if group.step <= step]
        needed = {step, *(group.step for group in (*groups, *self._ledger.steps[step].trained))}
        for number in sorted(needed - self._journals.keys()):
            journal = self._journals[number] = self._journal("train", number)
            for rollout in await asyncio.to_thread(journal.stored):
                self._rewards[Group(number, rollout.row_index)][rollout.attempt] = rollout.reward
        for number in sorted({group.step for group in groups} - self._begun):
            self._begun.add(number)
            if rows := [group.row for group in groups if group.step == number and not self._has_ended(group)]:
                self._start(number, rows)

    def _has_ended(self, group: Group) -> bool:
        return len(self._rewards[group]) == self._trainer_plan.samples_per_row

    def _settle(self, step: int) -> bool:
        """Choose the groups of a step once enough have ended; return whether it has them."""
        if step != min(self._open):
            return False
        plan, ledger = self._trainer_plan, self._ledger
        if trained := ledger.steps[step].trained:
            return all(map(self._has_ended, trained))
        carries = plan.oversample > 1
        groups = [group for group in ledger.list_unused() if carries or group.step <= step]
        ended = [group for group in groups if self._has_ended(group)]
        if any(
            step - ledger.steps[group.step].version > plan.max_staleness + 1
            for group in groups
            if not self._has_ended(group)
        ):
            return False  # of a later step, it would be too old
        unheard = [group for group in ended if len({*self._rewards[group].values()} - {None}) < 2]
        silent = unheard if plan.replace_no_signal else []
        budget = self._replace(step, len(silent))
        telling = [group for group in ended if group not in silent]
        if len(telling) + max(0, len(silent) - budget) < plan.rows_per_step:
            return False
        trained = (telling + silent)[: plan.rows_per_step]
        replaced = [group for group in silent if group not in trained][:budget]
        ledger.settle(step, trained, replaced, [group for group in unheard if group in (*trained, *replaced)])
        return True

    def _replace(self, step: int, silent: int) -> int:
        """Begin a group for each silent one, within the budget; return how many may be replaced."""
        budget = self._trainer_plan.replace_no_signal
        while self._ledger.steps[step].extra < min(silent, budget):
            rows = self._ledger.draw(step, 1)
            if not rows:
                return self._ledger.steps[step].extra
            self._ledger.begin_extra(step, rows[0])
            self._start(step, rows)
        return budget

    # --- running groups ---

    def _start(self, step: int, rows: Sequence[int]) -> None:
        task = asyncio.create_task(self._run_groups(step, rows))
        self._running.add(task)
        task.add_done_callback(self._end_groups)

    def _end_groups(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self._report_change()

    async def _run_groups(self, step: int, rows: Sequence[int]) -> None:
        journal = self._journals[step]
        observer = _StepObserver(self._run.listener, journal, lambda rollout: self._on_stored(step, rollout))
        if not journal.is_open:
            journal.open(self._run.plan)
        self._writers[step] += 1
        samples, agent = self._trainer_plan.samples_per_row, self._agent
        if timeout_s := self._trainer_plan.straggler_timeout_s:
            count = sum(samples - len(self._rewards[Group(step, row)]) for row in rows)
            agent = StragglerAgent(agent, count, timeout_s, lambda number: self._report_cut(step, number))
        step_agent = _StepAgent(agent, self._model, journal, step_folder_name("train", step))
        try:
            await self._evaluate(step_agent, step, samples, rows, journal, observer)
        finally:
            self._writers[step] -= 1
            if not self._writers[step]:
                journal.close()

    def _on_stored(self, step: int, rollout: Rollout) -> None:
        group = Group(step, rollout.row_index)
        self._rewards[group][rollout.attempt] = find_reward(rollout, self._run.failure_rewards)
        self._new[group] += 1
        if self._has_ended(group):
            self._report_change()

    def _report_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _report_cut(self, step: int, count: int) -> None:
        seconds = f"{self._trainer_plan.straggler_timeout_s:g} s"
        text = f"step {step}: {count} rollouts are cut off, {seconds} after nine in ten had ended"
        self._run.listener.on_message(text, warning=True)

    async def _evaluate(
        self, agent: Agent, step: int, samples: int, indices: Sequence[int], journal: StepJournal, observer: Observer
    ) -> None:
        run = self._run
        rows = await run.read_rows(indices)
        report = await Evaluation(
            _step_plan(run.plan, indices, samples),
            iter(rows),  # of no length: the journal may have rollouts of other rows, too
            agent,
            model=self._model,
            scorers=run.scorers,
            journal=journal,
            observer=observer,
            hashes=run.hashes,
            step=step,
            wait_for_room=run.listener.wait_for_room,
        ).run()
        if report.stopped:
            raise cut_short(step, report.stopped)

    # --- what a step has ---

    def _journal(self, kind: Kind, step: int) -> StepJournal:
        run = self._run
        return StepJournal(run.steps_dir, kind, step, redactor=run.redactor, failure_rewards=run.failure_rewards)

    def _read(self, groups: Sequence[Group]) -> list[StoredStepRollout]:
        stored: dict[Group, list[StoredStepRollout]] = defaultdict(list)
        for step in {group.step for group in groups}:
            for rollout in self._journals[step].stored():
                stored[Group(step, rollout.row_index)].append(rollout)
        rollouts, seen = [], Counter[int]()
        for group in groups:
            for rollout in stored[group]:
                rollout.attempt += seen[group.row] * self._trainer_plan.samples_per_row
                rollouts.append(rollout)
            seen[group.row] += 1
        return rollouts

    def _measure(self, step: int, groups: Sequence[Group], rollouts: Sequence[StoredStepRollout]) -> dict[str, float]:
        figures = step_figures(rollouts, "train") | environment_figures(self._trainer_plan, rollouts, "train")
        figures["rollout/staleness"] = fmean([step - 1 - self._ledger.steps[group.step].version for group in groups])
        solved = [any(self._rewards[group].values()) for group in self._ledger.steps[step].silent]
        figures |= {"rollout/rows_solved": float(sum(solved)), "rollout/rows_unsolved": float(solved.count(False))}
        size = self._trainer_plan.samples_per_row
        if self._trainer_plan.replace_no_signal:
            replaced = float(len(self._ledger.steps[step].replaced))
            figures |= {"rollout/replaced_groups": replaced, "rollout/replaced_rollouts": replaced * size}
        if self._trainer_plan.straggler_timeout_s:
            failures = [rollout.failure for rollout in rollouts if rollout.failure is not None]
            figures["rollout/cut_off"] = float(sum(failure.message.startswith(CUT_OFF) for failure in failures))
        if self._trainer_plan.oversample > 1:
            carried = [index for index, group in enumerate(groups) if group.step < step]
            lengths = [count_sampled_tokens(rollouts[at : at + size]) for at in range(0, len(rollouts), size)]
            figures["rollout/carried_groups"] = float(len(carried))
            if carried and any(lengths):
                figures["rollout/carried_length_ratio"] = fmean([lengths[index] for index in carried]) / fmean(lengths)
        return figures


def _step_plan(plan: EvalPlan, rows: Sequence[int], samples: int) -> EvalPlan:
    """Return the plan of these rows: all rollouts of a step at once, without a limit of failures in a row."""
    count = len(rows) * samples
    return plan.model_copy(
        update={
            "attempts": samples,
            "concurrency": count,
            "selection": Selection(rows=list(rows)),
            "retry": plan.retry.model_copy(update={"breaker_after": count + 1}),
        }
    )


class _StepAgent:
    def __init__(self, agent: Agent, model: TrainedModel, journal: StepJournal, part_of_run: str) -> None:
        self._agent = agent
        self._model = model
        self._journal = journal
        self._part_of_run = part_of_run

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        self._model.start(task.rollout_id, self._part_of_run)
        try:
            rollout = await self._agent.run(task, model)
        finally:  # what ran out of time has tokens, too
            self._journal.keep(task.rollout_id, self._model.take(task.rollout_id))
        if self._model.lost.is_set() and rollout.status is RolloutStatus.FAILED:
            await asyncio.Event().wait()  # the steps are about to be cut off: see `TrainingDriver`
        return rollout


@dataclass(frozen=True, slots=True)
class MixedAgent:
    plan: TrainerPlan
    agents: Sequence[Agent]

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        return await self.agents[self.plan.find_environment(task.row.index)].run(task, model)


@dataclass(frozen=True, slots=True)
class _SealedAgent:
    agent: Agent
    sealed: Agent

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        rollout = await self.agent.run(task, model)
        if rollout.failure is None:
            graded = await grade_ended(self.sealed, rollout, task, model)
            score = next(iter(graded.scores.values()), None)
            if score is not None and score.value is not None:
                rollout.metrics[SEALED] = score.value
        return rollout


class _StepObserver(Observer):
    def __init__(
        self, listener: TrainingListener, journal: StepJournal, on_stored: Callable[[Rollout], None] | None = None
    ) -> None:
        self._listener = listener
        self._journal = journal
        self._on_stored = on_stored
        self.count = 0

    def rollout(self, rollout: Rollout, running: Report | None) -> None:
        self.count += 1
        self._listener.on_rollout(self._journal.line(rollout))
        if self._on_stored is not None:
            self._on_stored(rollout)

    def stage(self, text: str) -> None:
        self._listener.on_message(text, warning=True)
