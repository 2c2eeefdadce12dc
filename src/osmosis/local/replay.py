"""One stored rollout, run again with the answers that the model gave then: what the agent does with them now.

Calls no model and stores nothing. An agent that asks something else than it asked then gets no made-up answer: its
rollout fails there, which says where the two part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis.datasets.scan import read_rows
from osmosis.engine.attempt import Attempts
from osmosis.engine.scoring import close_scorers
from osmosis.engine.task import Task
from osmosis.errors import NotFound
from osmosis.llm.replay import ReplayModel
from osmosis.records.dataset import Row
from osmosis.records.plan import ModelSpec, Selection, Timeouts
from osmosis.records.rollout import Message, Rollout
from osmosis.sdk.classify import raised

from .prepare import load_scorers_of
from .request import Request
from .rollout_source import load_source

_COMPARED = ("role", "content", "tool_calls")


@dataclass(frozen=True)
class Replayed:
    """What came of it."""

    rollout: Rollout
    recorded: Rollout
    row: Row
    row_changed: bool
    """The dataset's row is not the one that was run."""
    errors: Sequence[BaseException]
    """What user code raised, as it was raised."""

    @property
    def parts_at(self) -> int | None:
        """The index of the first message that is not what it was; None when all are."""
        return first_difference(self.recorded.messages, self.rollout.messages)


def first_difference(before: Sequence[Message], after: Sequence[Message]) -> int | None:
    """Where two conversations part, also where one of them ends."""
    for i, (was, now) in enumerate(zip(before, after, strict=False)):
        if any((was.get(name) or None) != (now.get(name) or None) for name in _COMPARED):
            return i
    return None if len(before) == len(after) else min(len(before), len(after))


def replay(request: Request, journal: Path, recorded: Rollout, *, no_limits: bool = False) -> Replayed:
    """Runs the attempt again; `journal` is the folder with its recording. `no_limits`: for a debugger.

    Raises what loading raises, and NotFound when the dataset no longer has the row.
    """
    timeouts = Timeouts(agent_s=None, score_s=None, model_s=None) if no_limits else request.plan.timeouts
    spec = ModelSpec(name=str(journal), kind="replay", params=request.plan.model.params)
    plan = request.plan.model_copy(update={"model": spec, "timeouts": timeouts, "concurrency": 1})
    request = replace(request, plan=plan)
    row = next(read_rows(request.dataset, Selection(rows=[recorded.row_index]), skip_bad=True), None)
    if row is None:
        raise NotFound(f"{request.dataset} has no row {recorded.row_index}", hint="put the dataset of the run back")
    changed = recorded.hashes.get("row") not in (None, row.content_hash)
    return asyncio.run(_replayed(request, recorded, row, changed))


async def _replayed(request: Request, recorded: Rollout, row: Row, changed: bool) -> Replayed:
    errors: list[BaseException] = []
    raised.set(errors)
    plan = request.plan
    source, scorers = load_source(request), load_scorers_of(request)
    model = ReplayModel(plan.model)
    task = Task(row=row, attempt=recorded.attempt, rollout_id=f"replay-{recorded.rollout_id}"[:120], step=recorded.step)
    try:
        async with source.rollouts(plan, model) as rollout_fn:
            said: list[str] = []
            rollout = await Attempts(rollout_fn, scorers, sandbox=plan.sandbox, say=said.append).one(task)
    finally:
        await model.close()
        await close_scorers(scorers)
    return Replayed(rollout, recorded, row, changed, errors)
