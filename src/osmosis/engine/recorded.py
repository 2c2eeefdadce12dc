"""Rollouts that exist already: read back from a journal, which regrading and comparing run on, or answers from a
file, which rubric runs judge. Asks no model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from osmosis.errors import NotFound
from osmosis.records.rollout import Message, Rollout, RolloutStatus

from .task import RolloutFn, Task


class RecordedRollouts:
    """Finds a stored rollout by its key; keeps file positions, not rollouts."""

    def __init__(self, path: Path) -> None:
        self.path = path / "rollouts.jsonl" if path.is_dir() else path
        if not self.path.exists():
            raise NotFound(f"there are no recorded rollouts at {self.path}", hint="give the name of a run")
        self.offsets: dict[tuple[int, int], int] = {}
        offset = 0
        with self.path.open("rb") as lines:
            for line in lines:
                try:
                    head = orjson.loads(line)
                    self.offsets.setdefault((head["row_index"], head["attempt"]), offset)
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    pass  # a torn line is no rollout
                offset += len(line)

    def read(self, key: tuple[int, int]) -> Rollout:
        """The rollout of this key; `KeyError` when there is none."""
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[key])
            return Rollout.model_validate(orjson.loads(lines.readline()))


def conversations(a: Path, b: Path, keys: Iterable[tuple[int, int]]) -> Iterator[tuple[list[Message], list[Message]]]:
    """What was said in both runs at each of these rollouts; `a` and `b` are folders of runs."""
    before, after = RecordedRollouts(a), RecordedRollouts(b)
    for key in keys:
        yield before.read(key).messages, after.read(key).messages


@asynccontextmanager
async def recorded(journal_path: Path) -> AsyncIterator[RolloutFn]:
    """A `RolloutFn` that answers each task with the recorded rollout, without the scores of score functions.

    The reward that the rollout brought itself is kept. A task that was not recorded raises `KeyError`.
    """
    known = RecordedRollouts(journal_path)

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
