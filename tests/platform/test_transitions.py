"""The queue as tables: which event moves a job where, who is to blame for a loss, which job comes next."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, get_args

import pytest
import sqlalchemy as sa

from osmosis.errors import InternalError
from osmosis.platform import tables
from osmosis.platform.scheduling import queue
from osmosis.platform.scheduling.transitions import (
    BLAME,
    TRANSITIONS,
    Event,
    Loss,
    change_state,
    count_loss,
    explain_giving_up,
)
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from support.platform_data import a_job, add_run

from .conftest import Site

STATES = (QueueState.WAITING, QueueState.HELD, QueueState.OVER)


def job(**columns: Any) -> tables.Job:
    return tables.Job(**{"id": "j", "run_id": "r", "state": QueueState.WAITING, "starts": 1, "lost": 0, **columns})


@pytest.mark.parametrize("event", get_args(Event))
@pytest.mark.parametrize("state", STATES)
def test_an_event_moves_a_job_as_the_table_says_or_is_refused(state: str, event: Event) -> None:
    row = job(state=state, lease_hash="h", lease_until=utc_now(), handle={"pid": 1})
    if (state, event) not in TRANSITIONS:
        with pytest.raises(InternalError):
            change_state(row, event)
        assert row.state == state
        return
    change_state(row, event)
    assert row.state == TRANSITIONS[state, event]
    if event in ("release", "finish", "close"):
        assert (row.lease_until, row.handle) == (None, None)
    assert (row.lease_hash is None) == (event == "release"), "a last message that is repeated is known by its lease"


@pytest.mark.parametrize("loss", Loss)
def test_a_loss_costs_whoever_is_to_blame(loss: Loss) -> None:
    row = job(starts=2)
    count_loss(row, loss)
    costs = {"job": (2, 0), "executor": (1, 1), "nobody": (1, 0)}
    assert (row.starts, row.lost) == costs[BLAME[loss]]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"starts": 2, "lost": 2}, ""),
        ({"starts": 3}, "the job ended 3 times in a row before anything was stored"),
        ({"starts": 1, "lost": 3}, "its machine or executor failed 3 times in a row"),
    ],
)
def test_a_job_is_given_up_after_so_many_losses(columns: dict[str, int], says: str) -> None:
    assert explain_giving_up(job(**columns), 3).startswith(says)
    assert bool(explain_giving_up(job(**columns), 3)) == bool(says)


NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
EARLIER, LATER = utc_now() - timedelta(hours=1), utc_now() + timedelta(hours=1)
IN_FLIGHT = {"run": "r0", "state": "held"}
GPU_IN_USE = {"workspace": "a", "run": "r0", "state": "held", "gpus": 1}
ORDERS: list[tuple[str, list[dict[str, Any]], dict[str, dict[str, Any]], list[str]]] = [
    ("oldest first", [{"run": "r1"}, {"run": "r2"}], {}, ["r1", "r2"]),
    ("priority before age", [{"run": "r1"}, {"run": "r2", "priority": 1}], {}, ["r2", "r1"]),
    ("fewest in flight", [IN_FLIGHT, {"run": "r1"}, {"run": "r2", "workspace": "b"}], {}, ["r2", "r1"]),
    ("longest unserved", [{"run": "r1"}, {"run": "r2", "workspace": "b"}], {"a": {"served_at": NOW}}, ["r2", "r1"]),
    ("a pause holds", [{"run": "r1", "not_before": LATER}, {"run": "r2", "not_before": EARLIER}], {}, ["r2"]),
    ("held and over are left out", [{"run": "r1", "state": "held"}, {"run": "r2", "state": "over"}], {}, []),
    ("runs in flight", [IN_FLIGHT, {"run": "r1"}], {"a": {"max_runs": 1}}, []),
    ("a shard of a run in flight", [IN_FLIGHT, {"run": "r0", "shard": 1}], {"a": {"max_runs": 1}}, ["r0"]),
    ("gpus in use", [GPU_IN_USE, {"run": "r1", "gpus": 1}, {"run": "r2"}], {"a": {"max_gpus": 1}}, ["r2"]),
    ("more than the quota, alone", [{"run": "r1", "rollouts": 50}], {"a": {"max_rollouts": 10}}, ["r1"]),
    ("deployments do not count", [IN_FLIGHT, {"run": "r1", "kind": "serving"}], {"a": {"max_runs": 1}}, ["r1"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("jobs", "quotas", "expected"), [case[1:] for case in ORDERS], ids=[case[0] for case in ORDERS]
)
def test_the_next_job(
    site: Site, jobs: list[dict[str, Any]], quotas: dict[str, dict[str, Any]], expected: list[str]
) -> None:
    with site.platform.db.write() as session:
        ids = {"a": tables.Workspace(name="a"), "b": tables.Workspace(name="b")}
        for name, row in ids.items():
            session.add(row)
            for column, value in quotas.get(name, {}).items():
                setattr(row, column, value)
    runs: dict[str, str] = {}
    for spec in jobs:
        if spec["run"] not in runs:
            workspace = ids[spec.get("workspace", "a")]
            status = "running" if spec.get("state") == "held" else "pending"
            runs[spec["run"]] = add_run(site.platform, workspace.id, spec["run"], status)
    with site.platform.db.write() as session:
        for number, (name, run_id) in enumerate(sorted(runs.items())):
            spec = next(one for one in jobs if one["run"] == name)
            run = session.get_one(tables.Run, run_id)
            run.created_at, run.kind = NOW + timedelta(seconds=number), spec.get("kind", "eval")
            run.priority = spec.get("priority", 0)
        session.execute(sa.delete(tables.Job))
        for spec in jobs:
            columns = {key: spec[key] for key in ("state", "gpus", "rollouts", "not_before", "shard") if key in spec}
            session.add(a_job(session.get_one(tables.Run, runs[spec["run"]]), **columns))
    found = site.stored(queue.waiting_jobs())
    names = {run_id: name for name, run_id in runs.items()}
    assert [names[row.run_id] for row in found] == expected
