"""Measure how many steps an hour a training run makes where one rollout in ten takes ten times as long, with and
without overlap: the real trainer on the tiny task, the real driver, and an agent that sleeps.

Each setting trains for the same steps and is judged on the same held-out rows. Makes the trainer's environment and the
tiny model on the first run. `--without-a-model` measures the flow alone: a trainer that samples at once and whose
update takes as long as a usual rollout; it needs hardly any CPU, and learns nothing.

    python benchmarks/training_overlap.py [--cache FOLDER] [--steps 11] [--seconds 3] [--without-a-model]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.jobs.trainer.environment import TrainerEnvironment
from osmosis.llm.model import ChatRequest
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.training.driver import TrainingDriver
from osmosis.training.models import TrainedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import Batch, Kind
from osmosis.training.protocol.plans import TrainerPlan

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))
from support.fake_trainer import FakeTrainer
from support.tiny_task import TOOL, TRAIN_TINY, grade, problem, run_tool
from support.trainer_drive import TURNS
from support.trainer_environment import trainer_environ, trainer_environment
from support.training_desk import RecordingListener, run_of

ROWS, HELD_OUT = 256, 256
SLOW_SHARE, SLOWER = 0.1, 10
SETTINGS: dict[str, dict[str, object]] = {
    "max_staleness = 0": {},
    "max_staleness = 1": {"max_staleness": 1, "importance": "token_truncate"},
    "oversample = 1.5": {"oversample": 1.5, "importance": "token_truncate"},
    "both": {"max_staleness": 1, "oversample": 1.5, "importance": "token_truncate"},
}


@dataclass
class Listener(RecordingListener):
    ends: dict[int, float] = field(default_factory=dict)

    def on_step(self, step: int) -> None:
        self.ends.setdefault(step, time.monotonic())


@dataclass
class SleepingAgent:
    """Adds two numbers with a tool, after a while; some rollouts take `SLOWER` times as long, always the same ones."""

    model: TrainedModel
    seconds: float
    learns: bool
    began: float = 0.0

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        row = task.row.index
        if row < ROWS:
            self.began = self.began or time.monotonic()
            is_slow = random.Random(f"{task.step}/{row}/{task.attempt}").random() < SLOW_SHARE
            await asyncio.sleep(self.seconds * (SLOWER if is_slow else 1))
        a, b = problem(random.Random(row))
        messages: list[dict[str, object]] = [{"role": "user", "content": f"{a}+{b}"}]
        for _ in range(TURNS):
            request = ChatRequest(list(messages), [TOOL], {"max_tokens": 24}, task.rollout_id, row, task.attempt)
            done = await self.model.complete(request)
            messages.append(done.message)
            calls = done.message.get("tool_calls") or ()
            if not calls:
                break
            for call in calls:
                content = run_tool(call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        reward = Score(name="reward", value=grade(messages, a, b) if self.learns else float(task.attempt % 2))
        return Rollout(
            rollout_id=task.rollout_id, row_index=row, attempt=task.attempt, status=RolloutStatus.SUCCESS,
            messages=messages, scores={"reward": reward},
        )  # fmt: skip


async def measure(plan: TrainerPlan, folder: Path, trainer: TrainerEnvironment, seconds: float) -> Listener:
    """Train by a plan; return what was heard, with the moment of the first rollout as the end of step 0."""
    written, socket, listener = folder / "plan.json", folder / "s", Listener()
    written.write_text(plan.model_dump_json())
    command = [str(trainer.python), "-m", "osmosis.training.trainer", str(written), str(socket)]
    quiet = subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, env=trainer_environ(trainer), stdout=quiet, stderr=quiet)
    await drive(plan, folder, listener, seconds, learns=True)
    await process.wait()
    return listener


async def measure_flow(plan: TrainerPlan, folder: Path, seconds: float) -> Listener:
    """As `measure`, with a trainer without a model."""
    listener = Listener()
    with FakeTrainer(plan, folder / "s") as trainer:
        wait = trainer.service.wait

        def wait_and_update(step: int, kind: Kind) -> Batch:
            batch = wait(step, kind)
            time.sleep(seconds if kind == "train" else 0)
            return batch

        trainer.service.wait = wait_and_update  # type: ignore[method-assign]  # there is no model whose update takes time
        await drive(plan, folder, listener, seconds, learns=False)
    return listener


async def drive(plan: TrainerPlan, folder: Path, listener: Listener, seconds: float, *, learns: bool) -> None:
    """Drive the trainer that serves in the folder to its end."""
    async with TrainerClient(folder / "s") as link:
        await link.wait_up()
        model = TrainedModel(link, "tiny", seed=plan.seed)
        agent = SleepingAgent(model, seconds, learns)
        await TrainingDriver(run_of(folder, listener, plan), link, model, agent).run()
    listener.ends[0] = agent.began


def report(name: str, plan: TrainerPlan, listener: Listener, before: float | None) -> float:
    points = {(point.key, point.step): point.value for point in listener.metrics}
    steps = plan.steps - 1  # the last one ends after its validation
    per_hour = 3600 * steps / (listener.ends[steps] - listener.ends[0])
    first, last = (points.get(("eval/validation/reward", step), 0.0) for step in (0, plan.steps))
    stale: Sequence[float] = [points["rollout/staleness", step] for step in range(1, plan.steps + 1)]
    gain = f"{per_hour / before:4.2f} times" if before else " " * 10
    rewards = f"held-out reward {first:.2f} to {last:.2f}"
    staleness = f"staleness {sum(stale) / len(stale):.2f}"
    print(f"{name:20} {per_hour:6.0f} steps an hour {gain}  {rewards}  {staleness}", flush=True)
    return per_hour


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "osmosis-benchmarks")
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=3.0, help="that a usual rollout takes")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="default: all")
    parser.add_argument("--without-a-model", action="store_true")
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    trainer = None if chosen.without_a_model else trainer_environment(chosen.cache)
    base = chosen.cache / "tiny-base"
    if trainer is not None and not (base / "tokenizer_config.json").exists():
        environ = {**os.environ, "PYTHONPATH": str(trainer.code)}
        subprocess.run([str(trainer.python), str(TRAIN_TINY / "tiny_model.py"), str(base)], env=environ, check=True)
    before = None
    for name in chosen.setting or SETTINGS:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            plan = TrainerPlan.model_validate(
                {
                    "run": "bench", "model_path": str(base), "output_dir": str(folder / "out"),
                    "rows": list(range(ROWS)), "validation_rows": list(range(ROWS, ROWS + HELD_OUT)),
                    "steps": chosen.steps, "eval_interval": chosen.steps, "save_interval": 999,
                    "rows_per_step": 8, "samples_per_row": 8, "max_prompt_length": 60, "max_response_length": 60,
                    "lr": 2e-3, "threads": 1, "seed": 7, **SETTINGS[name],
                }
            )  # fmt: skip
            if trainer is None:
                listener = asyncio.run(measure_flow(plan, folder, chosen.seconds))
            else:
                listener = asyncio.run(measure(plan, folder, trainer, chosen.seconds))
            per_hour = report(name, plan, listener, before)
            before = before or per_hour


if __name__ == "__main__":
    main()
