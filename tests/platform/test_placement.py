"""Which worker gets which run: by resources and labels, in turn between workspaces; what nobody can take says why."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.scheduling import queue
from osmosis.records.config.worker import ResourceNeeds, Resources, megabytes
from support.platform_data import EVALUATION, a_worker

from .test_workers import Box, worker_token

HAS = {"cpus": 8, "memory_mb": 32 * 1024, "gpus": 1, "disk_mb": 100 * 1024}


def submit(site: Any, expect: int = 200, **resources: Any) -> dict[str, Any]:
    body = {**EVALUATION, "advanced_config": {"resources": resources}}
    return dict(site.json("POST", "eval-runs", expect, json=body))


def box(site: Any, **hello: Any) -> Box:
    return Box(site, worker_token(site), **{"resources": HAS, "labels": {"gpu": "a100"}, "max_jobs": 9, **hello})


def stage_of(site: Any, run: dict[str, Any]) -> str:
    return str((site.json("GET", f"eval-runs/{run['id']}")["eval_run"].get("progress") or {}).get("stage", ""))


@pytest.mark.parametrize(
    ("asked", "lacking"),
    [
        ({}, []),
        ({"cpus": 8, "memory": "32GB", "gpus": 1, "disk": "0.1TB", "labels": {"gpu": "a100"}}, ["disk >= 0.1TB"]),
        ({"cpus": 8.5, "gpus": 2}, ["cpus >= 8.5", "gpus >= 2"]),
        ({"memory": "33000MB"}, ["memory >= 33000MB"]),
        ({"labels": {"gpu": "h100", "zone": "b"}}, ["label gpu=h100", "label zone=b"]),
    ],
)
def test_what_a_worker_lacks(asked: dict[str, Any], lacking: list[str]) -> None:
    needs = ResourceNeeds.model_validate(asked)
    assert needs.lacking(Resources.model_validate(HAS), {"gpu": "a100"}) == lacking


def test_sizes_are_text_with_a_unit() -> None:
    assert [megabytes(size) for size in ("512MB", "1.5 GB", "2TB", None)] == [512, 1536, 2 * 1024 * 1024, 0]


def test_a_size_without_a_unit_is_refused_by_its_key(ready: Any) -> None:
    refused = submit(ready, 400, memory="16")
    issue = refused["issues"][0]
    assert (issue["key"], issue["fix"]) == ("advanced.resources.memory", 'memory = "16GB"')
    assert 'must be a size such as "512MB" or "16GB"' in issue["message"]
    unknown = submit(ready, 400, gpu=1)["issues"][0]
    assert (unknown["key"], "gpus" in unknown["fix"]) == ("advanced.resources.gpu", True)


def test_a_run_goes_to_the_worker_that_has_what_it_asks_for(ready: Any) -> None:
    run = submit(ready, gpus=1, labels={"gpu": "a100"})
    assert box(ready, resources={"cpus": 64}, name="plain").round()["start"] is None
    assert box(ready, labels={}, name="unlabelled").round()["start"] is None
    assert box(ready).claim()["run_id"] == run["id"]


def test_what_its_other_jobs_asked_for_is_not_free(ready: Any) -> None:
    first, second, third = submit(ready, cpus=5), submit(ready, cpus=5), submit(ready, cpus=3)
    worker = box(ready)
    orders = [worker.claim(), worker.claim()]
    assert [order["run_id"] for order in orders] == [first["id"], third["id"]], (
        "the second does not fit beside the first"
    )
    assert worker.round(*map(worker.word, orders))["start"] is None
    worker.of_job("POST", orders[0], "finish", json={"status": "finished"})
    assert worker.claim()["run_id"] == second["id"]


def test_a_run_that_no_worker_can_take_says_why(ready: Any) -> None:
    run = submit(ready, gpus=2)
    assert stage_of(ready, run).startswith("no worker is there: osmosis worker start")
    box(ready)
    assert stage_of(ready, run) == ("no worker with gpus >= 2: 1 worker: box (8 cpus, 32768 MB, 1 gpus, gpu=a100)")
    fits = submit(ready, gpus=1)
    assert stage_of(ready, fits) == ""


def test_workspaces_take_turns(ready: Any) -> None:
    """A workspace with many runs does not keep another one waiting."""
    runs = [submit(ready)["id"] for _ in range(3)]
    ready.json("POST", "workspaces", json={"name": "other"})
    with ready.platform.db.write() as session:
        other = session.query(tables.Workspace).filter_by(name="other").one()
        late = session.get_one(tables.Run, runs[-1])
        late.workspace_id = other.id
        session.execute(sa.update(tables.Job).filter_by(run_id=late.id).values(workspace_id=other.id))
    with ready.platform.db.write() as session:
        worker = a_worker(session)
        claimed = [queue.claim(session, worker, 60) for _ in range(3)]
    assert [one.run.id for one in claimed if one] == [runs[0], runs[2], runs[1]]
