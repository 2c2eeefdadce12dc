"""What a training config comes to on a dataset: which rows train, which are held out, how many steps and rollouts.

Pure and the same wherever it is asked: the forecast at submit, the job, the trainer's plan. Draws nothing but the
held-out rows, from the config's own seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from .config import TrainingConfig

HELD_OUT = 10
"""One row in ten validates when nothing else is said ..."""
HELD_OUT_AT_MOST = 32
"""... and never more than these."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training config on given rows."""

    rows: list[int]
    """Indices of the rows that train, in the order of the file."""
    validation_rows: list[int]
    """Indices of the rows that are held out."""
    batch: int
    """Rows of a step, or examples (`sft`)."""
    samples: int
    """Rollouts of a row and step."""
    steps: int
    """0 when the rows, or examples, do not fill one step."""
    validations: int
    """How often the held-out rows are run: every `eval_interval` steps and at the end."""
    rollouts: int
    """All of them, validation included."""

    @property
    def at_once(self) -> int:
        """Rollouts of a step, which are all in flight together; of `sft`, its examples."""
        return self.batch * self.samples


def plan_training(config: TrainingConfig, rows: Sequence[int], *, examples: int = 0) -> TrainingPlan:
    """The plan of `config` on the selected `rows`. A step takes whole batches: what is left of an epoch is left out.

    `examples` are the rollouts that `method = "sft"` learns from; the rows are then for validation only.
    """
    wanted, advanced = config.training, config.advanced
    training, held_out = split_rows(rows, advanced.validation_rows, advanced.seed)
    batch, samples, passed = wanted.rollout_batch_size, wanted.n_samples_per_prompt, len(training)
    if advanced.method == "sft":
        training, samples, passed = [], 1, examples
    steps = wanted.total_epochs * (passed // batch)
    if advanced.max_steps is not None:
        steps = min(steps, advanced.max_steps)
    interval = config.checkpoints.eval_interval
    validations = steps // interval + bool(steps % interval) if held_out else 0
    of_validation = validations * len(held_out) * advanced.validation_samples
    rollouts = (steps * batch * samples if advanced.method == "grpo" else 0) + of_validation
    return TrainingPlan(training, held_out, batch, samples, steps, validations, rollouts)


def split_rows(rows: Sequence[int], wanted: int | None, seed: int) -> tuple[list[int], list[int]]:
    """The rows that train and those that are held out, drawn with `seed`. At least one row is left to train on."""
    count = min(len(rows) // HELD_OUT, HELD_OUT_AT_MOST) if wanted is None else min(wanted, max(0, len(rows) - 1))
    held_out = set(random.Random(seed).sample(list(rows), count))
    return [row for row in rows if row not in held_out], sorted(held_out)
