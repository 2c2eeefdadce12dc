"""The groups of each training step (`groups.json` beside its rollouts): the rollouts of a row that begin in one step.
They are written down before they are trained on, so that a killed run has the same steps again."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from osmosis.base.files import write_text
from osmosis.base.processes import end_tasks, wait_for_first
from osmosis.engine.agent import Agent
from osmosis.engine.rollout_model import RolloutModel, build_rollout
from osmosis.engine.task import Task
from osmosis.records.base import Record
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.training.protocol.plans import TrainerPlan, divide
from osmosis.training.step_journal import list_stored_steps, step_folder_name

FILE = "groups.json"
LONGEST_STREAK = 3


class Group(NamedTuple):
    step: int  # in which it began
    row: int


class StepGroups(Record):
    version: int  # the number of updates before its groups began
    rows: list[int] = Field(default_factory=list)  # one for each group that began in this step, in their order
    extra: int = 0  # the number of them that began in place of groups without signal
    trained: list[Group] = Field(default_factory=list)  # empty until the step has all
    replaced: list[Group] = Field(default_factory=list)
    silent: list[Group] = Field(default_factory=list)  # those of both whose rewards are all the same


class GroupLedger:
    def __init__(self, steps_dir: Path, plan: TrainerPlan) -> None:
        self._steps_dir = steps_dir
        self._plan = plan
        self.steps: dict[int, StepGroups] = {}
        for kind, step in list_stored_steps(steps_dir):
            path = self._path(step)
            if kind == "train" and path.exists():
                self.steps[step] = StepGroups.model_validate_json(path.read_bytes())
        used = {group for groups in self.steps.values() for group in (*groups.trained, *groups.replaced)}
        groups = (Group(step, row) for step in sorted(self.steps) for row in self.steps[step].rows)
        self._unused = [group for group in groups if group not in used]

    def begin(self, step: int, rows: Sequence[int], version: int) -> None:
        self.steps[step] = StepGroups(version=version, rows=list(rows))
        self._unused += [Group(step, row) for row in rows]
        self._write(step)

    def begin_extra(self, step: int, row: int) -> None:
        self.steps[step].rows.append(row)
        self.steps[step].extra += 1
        self._unused.append(Group(step, row))
        self._write(step)

    def settle(self, step: int, trained: Sequence[Group], replaced: Sequence[Group], silent: Sequence[Group]) -> None:
        groups = self.steps[step]
        groups.trained, groups.replaced, groups.silent = list(trained), list(replaced), list(silent)
        used = {*trained, *replaced}
        self._unused = [group for group in self._unused if group not in used]
        self._write(step)

    def list_unused(self) -> list[Group]:
        return sorted(self._unused, key=lambda group: group.step)

    def draw(self, step: int, count: int) -> list[int]:
        """Return rows for new groups of a step: those that came least often, in an order drawn from the seed."""
        plan, own = self._plan, self.steps[step].rows if step in self.steps else []
        passes = self._count_passes(step)
        busy = {group.row for group in self.list_unused()}
        ranks: dict[int, dict[int, int]] = {}
        for number in {passes[row] for row in plan.rows}:
            order = list(plan.rows)
            random.Random(f"{plan.seed}/{number}").shuffle(order)
            ranks[number] = {row: rank for rank, row in enumerate(order)}
        rows = [row for row in plan.rows if row not in own]
        rows.sort(key=lambda row: (row in busy, passes[row], ranks[passes[row]][row]))
        free, drawn = Counter(map(plan.find_environment, rows)), Counter[int]()
        for _, begun in self._list_begun(step):
            drawn.update(map(plan.find_environment, begun))
        parts = range(len(plan.shares))
        counts = divide(plan.shares, [drawn[at] for at in parts], [free[at] for at in parts], count)
        return [row for at in parts for row in [row for row in rows if plan.find_environment(row) == at][: counts[at]]]

    def _list_begun(self, step: int) -> Iterator[tuple[int, list[int]]]:
        """Return the rows that began in each step so far; where another machine was at it, those that were due."""
        for number in range(1, step + 1):
            if number in self.steps:
                yield number, self.steps[number].rows
            elif number < step:
                yield number, self._plan.rows_of(number)

    def _count_passes(self, step: int) -> Counter[int]:
        """Return how often each row came up; with `curriculum` a visit without signal counts several times."""
        plan, passes, streaks = self._plan, Counter[int](), Counter[int]()
        silent = {group for groups in self.steps.values() for group in groups.silent} if plan.curriculum else set()
        for number, rows in self._list_begun(step):
            for row in rows:
                streaks[row] = streaks[row] + 1 if Group(number, row) in silent else 0
                passes[row] += 1 << min(streaks[row], LONGEST_STREAK)
        return passes

    def count_due(self, steps: Sequence[int]) -> int:
        """Return how many groups to begin now that these steps wait for theirs; in the end no more than are needed."""
        plan, size = self._plan, self._plan.rows_per_step
        needed = size * len(steps) + math.ceil((plan.oversample - 1) * size - 1e-9)
        left = size * (plan.steps - min(steps) + 1)
        return max(0, min(needed, left) - len(self.list_unused()))

    def _path(self, step: int) -> Path:
        return self._steps_dir / step_folder_name("train", step) / FILE

    def _write(self, step: int) -> None:
        self._path(step).parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path(step), self.steps[step].model_dump_json(), durable=True)


SHARE = 0.9
CUT_OFF = "cut off as a straggler"


class StragglerAgent:
    """Ends a step's last rollouts: once nine in ten have ended, the others have `straggler_timeout_s` left."""

    def __init__(self, agent: Agent, count: int, timeout_s: float, on_cut: Callable[[int], None]) -> None:
        self._agent = agent
        self._count = count
        self._timeout_s = timeout_s
        self._on_cut = on_cut
        self._ended = 0
        self._late = asyncio.Event()

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        running = asyncio.create_task(self._agent.run(task, model))
        late = asyncio.create_task(self._late.wait())
        try:
            await wait_for_first(running, late)
            if running.done():
                return running.result()
        finally:
            await end_tasks(running, late)
            self._ended += 1
            if self._ended == max(1, math.floor(SHARE * self._count)):
                asyncio.get_running_loop().call_later(self._timeout_s, self._cut)
        message = f"{CUT_OFF}: nine in ten rollouts of its step had ended {self._timeout_s:g} s before"
        fix = "raise [advanced].straggler_timeout_s, or look for calls that block or never return"
        failure = Failure(phase=Phase.AGENT, category=Category.TIMEOUT, message=message, fix=fix)
        return build_rollout(task, model, failure=failure)

    def _cut(self) -> None:
        if self._ended < self._count:
            self._on_cut(self._count - self._ended)
            self._late.set()
