import random
from collections.abc import Sequence
from dataclasses import dataclass

from osmosis.records.config.run_config import TrainingConfig

HELD_OUT = 10
"""One row in ten validates when nothing else is said ..."""
HELD_OUT_AT_MOST = 32
"""... and never more than these."""


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    rows: list[int]
    """Indices of the rows that train, in the order of the file."""
    validation_rows: list[int]
    """Indices of the rows that choose the best checkpoint."""
    test_rows: list[int]
    """Indices of the rows that the run never sees."""
    batch: int
    """Rows of a step, or examples (`sft`, `dpo`)."""
    samples: int
    """Rollouts of a row and step."""
    steps: int
    """0 when the rows, or examples, do not fill one step."""
    validations: int
    """How often the held-out rows are run: at the start, every `eval_interval` steps and at the end."""
    rollouts: int
    """All of them, validation included."""
    replacements: int = 0
    """At most so many more rollouts, in place of rows without signal."""

    @property
    def at_once(self) -> int:
        """Rollouts of a step, all in flight together; without rollouts, its examples."""
        return self.batch * self.samples


def plan_training(config: TrainingConfig, rows: Sequence[int], *, examples: int = 0) -> TrainingPlan:
    """Apply `config` to the selected `rows`. A step takes whole batches: the rest of an epoch is left out.

    `examples`: number of rollouts (`method = "sft"`) or pairs of them (`"dpo"`) to learn from; the rows are then for
    validation only."""
    options, advanced = config.training, config.advanced
    training, held_out, test = split_rows(rows, advanced.validation_rows, advanced.seed, advanced.test_rows)
    batch, samples, passed = options.rollout_batch_size, options.n_samples_per_prompt, len(training)
    if advanced.method != "grpo":
        training, samples, passed = [], 1, examples
    elif "rollout_batch_size" not in options.model_fields_set:
        batch = min(batch, max(1, passed))  # a default adapts to a small dataset
    steps = options.total_epochs * (passed // batch)
    if advanced.max_steps is not None:
        steps = min(steps, advanced.max_steps)
    interval = config.checkpoints.eval_interval
    validations = 1 + steps // interval + bool(steps % interval) if held_out else 0
    of_validation = validations * len(held_out) * advanced.validation_samples
    rollouts = (steps * batch * samples if advanced.method == "grpo" else 0) + of_validation
    more = steps * advanced.replace_no_signal * samples
    return TrainingPlan(training, held_out, test, batch, samples, steps, validations, rollouts, more)


def split_rows(
    rows: Sequence[int], limit: int | None, seed: int, test: int = 0
) -> tuple[list[int], list[int], list[int]]:
    count = min(len(rows) // HELD_OUT, HELD_OUT_AT_MOST) if limit is None else min(limit, max(0, len(rows) - 1))
    draw = random.Random(seed)
    validation = set(draw.sample(list(rows), count))
    rest = [row for row in rows if row not in validation]
    tested = set(draw.sample(rest, min(test, max(0, len(rest) - 1))))
    return [row for row in rest if row not in tested], sorted(validation), sorted(tested)
