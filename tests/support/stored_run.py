"""A local run on the disk, as an evaluation leaves it: rollouts that are given, no model and no agent."""

from collections.abc import Sequence
from pathlib import Path

from osmosis.engine.journal import Journal
from osmosis.metrics.summary import summarize
from osmosis.records.run.plan import EvalPlan, ModelSpec
from osmosis.records.run.rollout import Rollout


def stored_run(
    folder: Path, rollouts: Sequence[Rollout], *, rows: int = 2, attempts: int = 2, ended: bool = True, **plan: object
) -> Journal:
    """The run in this folder, of `data.jsonl` beside it. Not `ended`: it goes on in this process, and its journal is
    open."""
    known: dict[str, object] = {
        "agent": "agent:agent",
        "model": ModelSpec.parse("offline/calculator"),
        "dataset": "data.jsonl",
        "attempts": attempts,
    }
    wanted = EvalPlan.model_validate({**known, **plan, "name": folder.name})
    journal = Journal(folder)
    journal.open(wanted, facts={"rows": rows, "local": {"base_dir": str(folder.parent)}})
    journal.append_all(list(rollouts))
    if ended:
        journal.write_report(summarize(rollouts, wanted, rows=rows))
        journal.close()
    return journal
