"""Rollouts that exist already: from a journal for regrading and comparing, or answers from a file for rubric runs."""

from collections.abc import Mapping
from pathlib import Path

import orjson

from osmosis.engine.build_rollout import REWARD, build_rollout
from osmosis.engine.journal import Journal, key_of
from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import NotFound
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Key


class RecordedRollouts:
    def __init__(self, folder: Path) -> None:
        journal = Journal(folder)
        self.path = journal.rollouts_path
        if not self.path.exists():
            raise NotFound(f"there are no recorded rollouts in {folder}", hint="give the name of a run")
        self.offsets = {key_of(line): offset for line, offset in journal.positions()}

    def read(self, key: Key) -> Rollout:
        with self.path.open("rb") as lines:
            lines.seek(self.offsets[key])
            return Rollout.model_validate(orjson.loads(lines.readline()))


class RecordedAgent:
    """Answers each task with the stored rollout, without the scores of score functions; its own reward is kept."""

    def __init__(self, folder: Path) -> None:
        self._rollouts = RecordedRollouts(folder)

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        rollout = self._rollouts.read(task.key)
        rollout.scores = {name: score for name, score in rollout.scores.items() if name == REWARD}
        return rollout


class AnsweredAgent:
    """Answers each task with the text of its row."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    async def run(self, task: Task, model: RolloutModel) -> Rollout:
        return build_rollout(task, model, [{"role": "assistant", "content": self._texts[task.row.index]}])
