"""Rollouts that exist already: read back from a journal, which regrading and comparing run on, or answers from a
file, which rubric runs judge. Asks no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from osmosis.errors import NotFound
from osmosis.records.keys import Key
from osmosis.records.rollout import Rollout, RolloutStatus

from .journal import Journal, key_of
from .task import RolloutFn, Task


class RecordedRollouts:
    """Finds a stored rollout by its key; keeps file positions, not rollouts."""

    def __init__(self, folder: Path) -> None:
        journal = Journal(folder)
        self.path = journal.rollouts_path
        if not self.path.exists():
            raise NotFound(f"there are no recorded rollouts in {folder}", hint="give the name of a run")
        self.offsets = {key_of(line): offset for line, offset in journal.positions()}

    def read(self, key: Key) -> Rollout:
        """The rollout of this key; `KeyError` when there is none."""
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[key])
            return Rollout.model_validate(orjson.loads(lines.readline()))


@asynccontextmanager
async def recorded(folder: Path) -> AsyncIterator[RolloutFn]:
    """A `RolloutFn` that answers each task with the recorded rollout, without the scores of score functions.

    The reward that the rollout brought itself is kept. A task that was not recorded raises `KeyError`.
    """
    known = RecordedRollouts(folder)

    async def run(task: Task) -> Rollout:
        rollout = known.read(task.key)
        rollout.scores = {name: score for name, score in rollout.scores.items() if name == "reward"}
        return rollout

    yield run


def answered(texts: Mapping[int, str]) -> RolloutFn:
    """A `RolloutFn` whose agent gave this answer to each row, by the row's index."""

    async def run(task: Task) -> Rollout:
        return Rollout(
            rollout_id=task.rollout_id,
            row_index=task.row.index,
            attempt=task.attempt,
            status=RolloutStatus.SUCCESS,
            messages=[{"role": "assistant", "content": texts[task.row.index]}],
        )

    return run
