"""The plan of a training run; its checkpoint folders, complete when the manifest names each file, its size and hash."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from pydantic import ValidationError as BadShape

from osmosis.base.files import file_sha256
from osmosis.errors import ValidationError
from osmosis.records.base import Record
from osmosis.records.config.run_config import TrainingConfig

HELD_OUT = 10  # One row in ten validates when nothing else is said ..
HELD_OUT_AT_MOST = 32  # ... and never more than these.


class EnvironmentPlan(Record):
    name: str
    share: float
    """Part of the rows of a step, and of the validation reward, from 0 to 1."""
    start: int
    """Index of its first row; the rows of all environments are numbered on."""
    rows: list[int]
    validation_rows: list[int]
    test_rows: list[int]


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    environments: list[EnvironmentPlan]
    rows: list[int]  # Indices of the rows that train, in the order of the file
    validation_rows: list[int]  # Indices of the rows that choose the best checkpoint
    test_rows: list[int]  # Indices of the rows that the run never sees
    largest_batch: int  # Rows of the largest step that the rows can fill
    batch: int  # Rows of a step, or examples (`sft`, `dpo`)
    samples: int  # Rollouts of a row and step
    steps: int  # 0 when the rows, or examples, do not fill one step
    validations: int  # How often the held-out rows are run: at the start, every `eval_interval` steps and at the end
    rollouts: int  # All of them, validation included
    replacements: int = 0  # At most so many more rollouts, in place of rows without signal

    @property
    def at_once(self) -> int:
        """Rollouts of a step, all in flight together; without rollouts, its examples."""
        return self.batch * self.samples


def plan_training(
    config: TrainingConfig, rows: Sequence[int], *, sizes: Sequence[int] = (), examples: int = 0
) -> TrainingPlan:
    """Apply `config` to the selected `rows`, in whole batches: the rest of an epoch is left out. `sizes`: of several
    environments, the number of rows of each, drawn by weight. `examples`: number of rollouts (`"sft"`) or pairs
    (`"dpo"`) to learn from; the rows are then for validation only."""
    options, advanced = config.training, config.advanced
    environments = list(_split(config, rows, sizes))
    training, held_out, test = (
        [row for part in environments for row in getattr(part, name)]
        for name in ("rows", "validation_rows", "test_rows")
    )
    batch, samples, passed = options.rollout_batch_size, options.n_samples_per_prompt, len(training)
    largest = min(passed, *(math.floor(len(part.rows) / part.share + 1e-9) for part in environments))
    if advanced.method != "grpo":
        training, samples, passed, largest = [], 1, examples, examples
    elif "rollout_batch_size" not in options.model_fields_set:
        batch = min(batch, max(1, largest))  # a default adapts to a small dataset
    steps = options.total_epochs * (passed // batch) if batch <= largest else 0
    if advanced.max_steps is not None:
        steps = min(steps, advanced.max_steps)
    interval = config.checkpoints.eval_interval
    validations = 1 + steps // interval + bool(steps % interval) if held_out else 0
    of_validation = validations * len(held_out) * advanced.validation_samples
    rollouts = (steps * batch * samples if advanced.method == "grpo" else 0) + of_validation
    more = steps * advanced.replace_no_signal * samples
    return TrainingPlan(
        environments, training, held_out, test, largest, batch, samples, steps, validations, rollouts, more
    )


def _split(config: TrainingConfig, rows: Sequence[int], sizes: Sequence[int]) -> Iterator[EnvironmentPlan]:
    """Split each environment by its own places in its file: two with the same dataset hold out the same rows."""
    advanced, environments = config.advanced, list(config.environments.values())
    starts = [0, *accumulate(sizes)][: len(environments)]
    weights = sum(environment.weight for environment in environments)
    for environment, start, end in zip(environments, starts, [*starts[1:], math.inf], strict=False):
        own = [row - start for row in rows if start <= row < end]
        split = split_rows(own, advanced.validation_rows, advanced.seed, advanced.test_rows)
        training, validation, test = ([row + start for row in part] for part in split)
        yield EnvironmentPlan(
            name=environment.label, share=environment.weight / weights, start=start,
            rows=training, validation_rows=validation, test_rows=test,
        )  # fmt: skip


def split_rows(
    rows: Sequence[int], limit: int | None, seed: int, test: int = 0
) -> tuple[list[int], list[int], list[int]]:
    count = min(len(rows) // HELD_OUT, HELD_OUT_AT_MOST) if limit is None else min(limit, max(0, len(rows) - 1))
    draw = random.Random(seed)
    validation = set(draw.sample(list(rows), count))
    rest = [row for row in rows if row not in validation]
    tested = set(draw.sample(rest, min(test, max(0, len(rest) - 1))))
    return [row for row in rest if row not in tested], sorted(validation), sorted(tested)


MANIFEST = "manifest.json"


class CheckpointFile(Record):
    name: str
    """Relative to the folder, with `/`."""
    size: int
    sha256: str


class CheckpointManifest(Record):
    version: Literal[1] = 1
    run: str
    step: int
    kind: Literal["regular", "stop", "final"]
    method: Literal["grpo", "sft", "dpo"]
    fingerprint: str
    base_model: str
    reward: float | None = None
    """On the held-out rows, else on those of the step."""
    created_at: str
    """ISO 8601, UTC."""
    versions: dict[str, str]
    files: list[CheckpointFile]


def describe_files(folder: Path) -> list[CheckpointFile]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST)
    return [
        CheckpointFile(name=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in files
    ]


def read_manifest(folder: Path) -> CheckpointManifest:
    path = folder / MANIFEST
    hint = "resume from an earlier checkpoint of the run: complete ones have a manifest.json that fits their files"
    try:
        manifest = CheckpointManifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ValidationError(f"{folder} is not a complete checkpoint: it has no {MANIFEST}", hint=hint) from None
    except (BadShape, OSError) as error:
        raise ValidationError(f"{path} cannot be read: {error}", hint=hint) from error
    for file in manifest.files:
        _check(folder, file, hint)
    return manifest


def is_complete(folder: Path) -> bool:
    try:
        read_manifest(folder)
    except ValidationError:
        return False
    return True


def _check(folder: Path, file: CheckpointFile, hint: str) -> None:
    path = folder / file.name
    if folder.resolve() not in path.resolve().parents:
        raise ValidationError(f"the manifest of {folder} names {file.name}, which is outside of it", hint=hint)
    if not path.is_file():
        raise ValidationError(f"{folder} is not a complete checkpoint: {file.name} is missing", hint=hint)
    size = path.stat().st_size
    if size != file.size:
        problem = f"{file.name} has {size} bytes instead of {file.size}"
        raise ValidationError(f"{folder} is not a complete checkpoint: {problem}", hint=hint)
    if file_sha256(path) != file.sha256:
        raise ValidationError(f"{folder} is not a complete checkpoint: the content of {file.name} changed", hint=hint)
