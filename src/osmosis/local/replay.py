import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from osmosis.datasets.scan import read_rows
from osmosis.engine.attempt import Attempts
from osmosis.engine.load_agent import close_scorers
from osmosis.engine.task import Task
from osmosis.errors import NotFound
from osmosis.llm.replay import ReplayModel
from osmosis.local.prepare import load_scorers_of
from osmosis.local.rollout_source import load_source
from osmosis.local.run_options import RunOptions
from osmosis.records.run.plan import EvalPlan, ModelSpec, Selection, Timeouts
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Row
from osmosis.sdk.classify import raised

_COMPARED = ("role", "content", "tool_calls")


@dataclass(frozen=True)
class Replayed:
    rollout: Rollout
    recorded: Rollout
    row: Row
    row_changed: bool
    errors: Sequence[BaseException]

    @property
    def parts_at(self) -> int | None:
        before, after = self.recorded.messages, self.rollout.messages
        for i, (was, now) in enumerate(zip(before, after, strict=False)):
            if any((was.get(name) or None) != (now.get(name) or None) for name in _COMPARED):
                return i
        return None if len(before) == len(after) else min(len(before), len(after))


def replay(
    plan: EvalPlan, options: RunOptions, journal: Path, recorded: Rollout, *, no_limits: bool = False
) -> Replayed:
    """Run the attempt again; `journal` is the folder with its recording, `no_limits` is for a debugger."""
    timeouts = Timeouts(agent_s=None, score_s=None, model_s=None) if no_limits else plan.timeouts
    spec = ModelSpec(name=str(journal), kind="replay", params=plan.model.params)
    plan = plan.model_copy(update={"model": spec, "timeouts": timeouts, "concurrency": 1})
    dataset = options.dataset(plan)
    row = next(read_rows(dataset, Selection(rows=[recorded.row_index]), skip_bad=True), None)
    if row is None:
        raise NotFound(f"{dataset} has no row {recorded.row_index}", hint="put the dataset of the run back")
    changed = recorded.hashes.get("row") not in (None, row.content_hash)
    return asyncio.run(_replayed(plan, options, recorded, row, changed))


async def _replayed(plan: EvalPlan, options: RunOptions, recorded: Rollout, row: Row, changed: bool) -> Replayed:
    errors: list[BaseException] = []
    raised.set(errors)
    source, scorers = load_source(plan, options), load_scorers_of(plan, options)
    model = ReplayModel(plan.model)
    task = Task(row=row, attempt=recorded.attempt, rollout_id=f"replay-{recorded.rollout_id}"[:120], step=recorded.step)
    try:
        async with source.open(plan, model) as agent:
            lines: list[str] = []
            rollout = await Attempts(plan, agent, model, scorers, say=lines.append).run(task)
    finally:
        await model.close()
        await close_scorers(scorers)
    return Replayed(rollout, recorded, row, changed, errors)
