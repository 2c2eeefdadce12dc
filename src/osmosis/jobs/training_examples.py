"""The examples of a supervised run (`method = "sft"`), as a file for the trainer: fetched once, kept with the run.

A job that resumes reads the file that the first one wrote, so the run goes on with the same examples whatever has
become of the run that they are from. What an example's tokens are, and which of them are learned, the trainer decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from osmosis.base.files import replacing
from osmosis.errors import LeaseLost, NetworkError, OsmosisError
from osmosis.records.config import TrainingConfig
from osmosis.records.contract.job_messages import StoredExample
from osmosis.records.rollout import Category
from osmosis.training.link import Example

from .job import JobContext, setup_failed

STEP = "examples"
FILE = "examples.jsonl"
MOST_BYTES = 16 << 30
"""Of the file: beyond that a smaller run, or a higher min_score, is meant."""


@dataclass(frozen=True, slots=True)
class Examples:
    """The file, and how many there are in it."""

    path: Path
    count: int


async def examples_of(context: JobContext, config: TrainingConfig) -> Examples:
    """The examples of this run. Raises `JobFailed`."""
    path = context.work_dir / FILE
    if not path.exists():
        try:
            await _fetch(context.reporter.examples(), path)
        except (LeaseLost, NetworkError):
            raise
        except OsmosisError as problem:
            what = f"the rollouts to learn from cannot be had: {problem.message}"
            raise setup_failed(what, fix=problem.hint, category=Category.BAD_REQUEST) from problem
    count = await asyncio.to_thread(_lines, path)
    context.log.write(STEP, f"{count} rollouts of {config.advanced.from_run} to learn from")
    return Examples(path, count)


async def _fetch(found: AsyncIterator[StoredExample], path: Path) -> None:
    size = 0
    with replacing(path, durable=True) as out:
        async for one in found:
            if not one.messages:
                continue
            line = Example(messages=one.messages, tools=one.tools).to_line()
            size += len(line)
            if size > MOST_BYTES:
                what = f"the rollouts to learn from have more than {MOST_BYTES >> 30} GB"
                fix = "raise [advanced].min_score, or name a smaller run in from_run"
                raise setup_failed(what, fix=fix, category=Category.BAD_REQUEST)
            out.write(line)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)
