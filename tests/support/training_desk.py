"""A desk for tests of training without a model: rows, an agent of two turns with a tool, and a listener that keeps all.

The agent asks the model, tells it the result of a tool, asks again, and is scored by a function of its last answer; it
goes through the same agent as everything else. Nothing here is fast or slow on purpose.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Model
from osmosis.records.run.job import MetricPoint
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Category, Failure, Message, Phase, Rollout, RolloutStatus, Score
from osmosis.records.run.rows import Row
from osmosis.training.collecting import TrainingRun
from osmosis.training.protocol.messages import Checkpointed
from osmosis.training.protocol.plans import TrainerPlan
from osmosis.training.step_journal import MetricsFile

Judge = Callable[[Task, str], "float | Failure | None"]
"""From a task and the last answer: its reward, why it failed, or None for no score at all."""


def plan_of(folder: Path, **changes: object) -> TrainerPlan:
    """A plan of three steps of two rows and four samples, with two held-out rows."""
    values: dict[str, object] = {
        "run": "train-1",
        "model_path": str(folder / "base"),
        "output_dir": str(folder / "models"),
        "rows": list(range(6)),
        "validation_rows": [6, 7],
        "steps": 3,
        "rows_per_step": 2,
        "samples_per_row": 4,
        "eval_interval": 2,
        "save_interval": 1,
        "max_prompt_length": 1000,
        "max_response_length": 1000,
        "lr": 1e-3,
    }
    return TrainerPlan.model_validate({**values, **changes})


@dataclass
class RecordingListener:
    """Keeps what it hears."""

    rollouts: list[Rollout] = field(default_factory=list)
    metrics: list[MetricPoint] = field(default_factory=list)
    checkpoints: list[Checkpointed] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def keys(self) -> list[tuple[int, int, int]]:
        """(step, row, attempt) of everything that was stored."""
        return [(rollout.step, rollout.row_index, rollout.attempt) for rollout in self.rollouts]

    def on_rollout(self, line: bytes) -> None:
        self.rollouts.append(Rollout.model_validate(orjson.loads(line)))

    def on_metrics(self, points: Sequence[MetricPoint]) -> None:
        self.metrics += points

    def on_checkpoint(self, saved: Checkpointed) -> None:
        self.checkpoints.append(saved)

    def on_step(self, step: int) -> None:
        self.steps.append(step)

    def on_message(self, text: str, *, warning: bool = False) -> None:
        (self.alarms if warning else self.said).append(text)

    def on_alarm(self, text: str) -> None:
        self.alarms.append(text)

    async def wait_for_room(self) -> None: ...


def by_attempt(task: Task, answer: str) -> float:
    """Another reward for every other attempt, so that every group has a signal."""
    return float(task.attempt % 2)


@dataclass
class TwoTurns:
    """The agent. `gate`, when given, is waited for before each rollout."""

    model: Model
    judge: Judge = by_attempt
    gate: asyncio.Event | None = None
    runs: list[tuple[int, int, int]] = field(default_factory=list)
    """(step, row, attempt) of everything that was run."""

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        """One attempt."""
        self.runs.append((task.step, task.row.index, task.attempt))
        if self.gate is not None:
            await self.gate.wait()
        messages: list[Message] = list(task.row.messages())
        try:
            for said in ("first", None):
                request = ChatRequest(list(messages), None, {}, task.rollout_id, task.row.index, task.attempt)
                done = await self.model.complete(request)
                messages.append(done.message)
                if said is not None:
                    messages.append({"role": "tool", "content": f"result of {said}"})
        except ModelError as error:
            failure = Failure(phase=Phase.MODEL, category=Category(error.category), message=error.message)
            return _ended(task, messages, failure)
        found = self.judge(task, str(messages[-1].get("content")))
        return _ended(task, messages, found)


def _ended(task: Task, messages: list[Message], found: float | Failure | None) -> Rollout:
    failure = found if isinstance(found, Failure) else None
    rollout = Rollout(
        rollout_id=task.rollout_id,
        row_index=task.row.index,
        attempt=task.attempt,
        status=RolloutStatus.FAILED if failure else RolloutStatus.SUCCESS,
        messages=messages,
        failure=failure,
    )
    if isinstance(found, float):
        rollout.scores["reward"] = Score(name="reward", value=found)
    return rollout


def run_of(folder: Path, listener: RecordingListener, trainer_plan: TrainerPlan | None = None) -> TrainingRun:
    """What surrounds a driver, in this folder; rows are made up."""

    async def read_rows(indices: Sequence[int]) -> list[Row]:
        return [Row(index=i, data={"user_prompt": f"row {i}", "ground_truth": "0"}, key=f"key-{i}") for i in indices]

    plan = EvalPlan(name="train-1", agent="desk", model=ModelSpec(name="base", kind="trained"), dataset="desk")
    return TrainingRun(
        plan=plan,
        trainer_plan=trainer_plan or plan_of(folder),
        read_rows=read_rows,
        steps_dir=folder / "steps",
        metrics=MetricsFile(folder / "metrics.jsonl"),
        listener=listener,
    )
