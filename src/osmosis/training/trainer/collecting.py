"""A step as the trainer sees it: open for sampling, ask the job for the rollouts, and count what came.

Knows no model and no training library, so that every engine collects, validates and reports in the same way.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from osmosis.training.link import Batch, Collect, Notice, Sequence, StepMetrics, TrainerPlan
from osmosis.training.order import rows_of_step

from .sampling_totals import Totals
from .service import Sampler, Stopped, TrainerService
from .training_failed import LESS_MEMORY, TrainingFailed


class OpenSampler(Sampler, Protocol):
    """A sampler that is open for one step at a time."""

    totals: Totals

    def open(self, step: int) -> contextlib.AbstractContextManager[None]:
        """Answers requests until the block ends; `step` is that of the weights."""
        ...


@dataclass(slots=True)
class Clock:
    """Where the time of a step went, in seconds."""

    rollout: float = 0.0
    """Collecting, with at least one answer being sampled."""
    wait: float = 0.0
    """Collecting, with nothing to sample: agents, tools and graders at work."""
    update: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class Collector:
    """Collects for one run; `last_reward` is that of the newest training step, `validated` those of validations."""

    plan: TrainerPlan
    service: TrainerService
    sampler: OpenSampler
    clock: Clock = field(default_factory=Clock)
    last_reward: float | None = None
    validated: dict[int, float | None] = field(default_factory=dict)
    _figures: dict[str, float] = field(default_factory=dict)
    _update_since: float = 0.0
    _forks_told: bool = False

    def train(self, step: int) -> list[Sequence | None]:
        """The sequences of a step in the order of its rows, `samples_per_row` of each; None where there is none.

        Raises `Stopped` when the job stops the run instead of answering.
        """
        plan = self.plan
        rows = rows_of_step(plan.rows, plan.rows_per_step, step, plan.seed)
        self.clock = Clock()
        batch = self._collect(
            Collect(step=step, kind="train", rows=rows, samples_per_row=plan.samples_per_row), step - 1
        )
        self._figures = rollout_figures(batch, rows, plan.samples_per_row)
        self.last_reward = self._figures.get("rollout/raw_reward")
        self._update_since = time.monotonic()
        if self._figures["rollout/forks"] and not self._forks_told:
            self._forks_told = True
            self.service.emit(
                Notice(
                    step=step,
                    message="some rollouts rewrote their history; of each, the longest part is trained on",
                )
            )
        chosen = chosen_parts(batch)
        return [chosen.get((row, attempt)) for row in rows for attempt in range(plan.samples_per_row)]

    def begin_update(self) -> None:
        """An update without rollouts (`sft`) begins."""
        self.clock, self._figures, self._update_since = Clock(), {}, time.monotonic()

    def updated(self) -> None:
        """The weights of the step are in place."""
        self.clock.update = time.monotonic() - self._update_since

    def report(self, step: int, values: dict[str, float]) -> None:
        """The figures of a training step: those of its rollouts, its time, and `values` of the update."""
        clock = self.clock
        seconds = clock.rollout + clock.wait + clock.update
        figures = {**self._figures, "perf/update_s": clock.update, **values}
        if self._figures:  # a step that imitates samples nothing
            figures |= {
                "perf/rollout_s": clock.rollout,
                "perf/wait_s": clock.wait,
                "perf/tokens_per_s": clock.tokens / seconds if seconds else 0.0,
            }
        known = {key: value for key, value in figures.items() if math.isfinite(value)}
        self.service.health.step = step
        self.service.emit(StepMetrics(step=step, values=known))

    def validate(self, step: int) -> None:
        """Mean reward of the held-out rows with the weights of this step; a stop leaves it out."""
        rows, samples = self.plan.validation_rows, self.plan.validation_samples
        if not rows or step in self.validated or self.service.stop_requested.is_set():
            return
        before = self.clock
        self.clock = Clock()
        try:
            batch = self._collect(Collect(step=step, kind="validation", rows=rows, samples_per_row=samples), step)
        except Stopped:
            return
        finally:
            self.clock = before
        figures = rollout_figures(batch, rows, samples)
        self.validated[step] = figures.get("rollout/raw_reward")
        names = {"rollout/raw_reward": "reward", "rollout/failed_ratio": "failed_ratio"}
        values = {f"eval/validation/{name}": figures[key] for key, name in names.items() if key in figures}
        self.service.emit(StepMetrics(step=step, values=values))

    def reward_of(self, step: int) -> float | None:
        """What checkpoints are compared by: the validation of that step, else the step's own rollouts."""
        if self.plan.validation_rows:
            return self.validated.get(step)
        return self.last_reward

    def wants_validation(self, step: int) -> bool:
        return step == self.plan.steps or step % self.plan.eval_interval == 0

    def _collect(self, collect: Collect, weights_of: int) -> Batch:
        totals = self.sampler.totals
        tokens, busy, began = totals.tokens, totals.busy.seconds, time.monotonic()
        with self.sampler.open(weights_of):
            batch = self.service.collect(collect)
        seconds = time.monotonic() - began
        self.clock.rollout = min(totals.busy.seconds - busy, seconds)
        self.clock.wait = seconds - self.clock.rollout
        self.clock.tokens = totals.tokens - tokens
        if totals.out_of_memory and not any(one.reward is not None for one in batch.sequences):
            what = f"out of memory while sampling: {totals.out_of_memory}"
            raise TrainingFailed(what, kind="memory", hint=LESS_MEMORY)
        return batch


def chosen_parts(batch: Batch) -> dict[tuple[int, int], Sequence]:
    """Of each attempt, the part with the most tokens of the model, the first of several."""
    chosen: dict[tuple[int, int], Sequence] = {}
    for one in sorted(batch.sequences, key=lambda one: one.part):
        key = (one.row, one.attempt)
        if key not in chosen or sum(one.mask) > sum(chosen[key].mask):
            chosen[key] = one
    return chosen


def rollout_figures(batch: Batch, rows: list[int], samples: int) -> dict[str, float]:
    """What the rollouts of a step say, before any update. A share is of all the rollouts that were asked for."""
    asked = len(rows) * samples
    attempts: dict[tuple[int, int], list[Sequence]] = defaultdict(list)
    for one in batch.sequences:
        attempts[one.row, one.attempt].append(one)
    rewards = {key: parts[0].reward for key, parts in attempts.items()}
    scored = [reward for reward in rewards.values() if reward is not None]
    groups = [[r for n in range(samples) if (r := rewards.get((row, n))) is not None] for row in rows]
    spoken = [sum(sum(part.mask) for part in parts) for parts in attempts.values()]
    kept = sum(sum(one.mask) for one in chosen_parts(batch).values())
    figures = {
        "rollout/failed_ratio": 1 - len(scored) / asked,
        "rollout/no_signal_ratio": sum(len(set(group)) < 2 for group in groups) / len(groups),
        "rollout/forks": float(sum(len(parts) > 1 for parts in attempts.values())),
        "rollout/forked_tokens_ratio": 1 - kept / sum(spoken) if sum(spoken) else 0.0,
    }
    if attempts:
        figures["rollout/response_lengths"] = statistics.fmean(spoken)
        longest = [max(len(part.token_ids) for part in parts) for parts in attempts.values()]
        figures["rollout/total_lengths"] = statistics.fmean(longest)
        truncated = [any(part.truncated for part in parts) for parts in attempts.values()]
        figures["rollout/truncated_ratio"] = sum(truncated) / asked
    if scored:
        figures["rollout/raw_reward"] = statistics.fmean(scored)
        figures["rollout/reward_std"] = statistics.pstdev(scored)
    return figures
