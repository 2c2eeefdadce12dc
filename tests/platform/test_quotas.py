"""What a workspace may have at once, and in which order workspaces are served."""

from __future__ import annotations

import re
import threading

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import queue
from osmosis.records.run.job import JobResult
from osmosis.records.run.status import RunStatus
from support.platform_data import a_job, a_worker, add_run


def workspace_of(site, name: str = "demo") -> str:
    return site.only(sa.select(tables.Workspace.id).where(tables.Workspace.name == name))


def waits(site, workspace_id: str, name: str, batch_size: int = 1, **advanced) -> None:
    """A pending run."""
    config = {"experiment": {}, "evaluation": {"batch_size": batch_size}, "advanced": advanced}
    run_id = add_run(site.platform, workspace_id, name, status="pending", config=config)
    with site.platform.db.write() as session:
        queue.enqueue_run(session, session.get_one(tables.Run, run_id))


def claimed(site, **has) -> str | None:
    """By a worker that has so much."""
    with site.platform.db.write() as session:
        found = queue.claim(session, a_worker(session, resources=has), 60)
        return found.run.name if found else None


def ends(site, name: str) -> None:
    with site.platform.db.write() as session:
        run = session.scalars(sa.select(tables.Run).where(tables.Run.name == name)).one()
        lifecycle.end(session, run, JobResult(status=RunStatus.FINISHED), "")


def test_workspaces_take_turns_whoever_came_first(site) -> None:
    site.json("POST", "workspaces", json={"name": "other"})
    many, few = workspace_of(site), workspace_of(site, "other")
    for number in range(4):
        waits(site, many, f"many-{number}")
    for number in range(2):
        waits(site, few, f"few-{number}")
    order = []
    for _ in range(6):  # one job at a time
        order.append(claimed(site))
        ends(site, str(order[-1]))
    assert order == ["many-0", "few-0", "many-1", "few-1", "many-2", "many-3"]


def test_the_workspace_with_fewer_jobs_comes_first(site) -> None:
    site.json("POST", "workspaces", json={"name": "other"})
    many, few = workspace_of(site), workspace_of(site, "other")
    for number in range(3):
        waits(site, many, f"many-{number}")
    assert [claimed(site), claimed(site)] == ["many-0", "many-1"]
    waits(site, few, "few-0")
    waits(site, few, "few-1")
    assert [claimed(site), claimed(site), claimed(site)] == ["few-0", "few-1", "many-2"]


def test_runs_in_flight_wait_for_their_quota(site) -> None:
    here = workspace_of(site)
    site.json("PUT", "workspaces/demo/quota", json={"runs": 2})
    for number in range(3):
        waits(site, here, f"r-{number}")
    assert [claimed(site), claimed(site), claimed(site)] == ["r-0", "r-1", None]
    used = site.json("GET", "quota")
    assert (used["used"]["runs"], used["limits"]["runs"]) == (2, 2)
    with site.platform.db.write() as session:  # a job of a run in flight is no further run
        held = session.scalars(sa.select(tables.Job).where(tables.Job.state == "held").limit(1)).one()
        session.add(a_job(session.get_one(tables.Run, held.run_id), shard=1))
    assert claimed(site) in ("r-0", "r-1")
    ends(site, "r-0")
    assert claimed(site) == "r-2"


def test_rollouts_in_flight_wait_for_their_quota_and_one_too_large_runs_alone(site) -> None:
    here = workspace_of(site)
    site.json("PUT", "workspaces/demo/quota", json={"rollouts": 10})
    for name, size in (("a", 6), ("b", 6), ("c", 4), ("huge", 64)):
        waits(site, here, name, size)
    assert [claimed(site), claimed(site), claimed(site)] == ["a", "c", None]
    assert site.json("GET", "quota")["used"]["rollouts"] == 10
    ends(site, "a")
    assert claimed(site) == "b"
    for name in ("b", "c"):
        assert claimed(site) is None
        ends(site, name)
    assert claimed(site) == "huge"  # from before there was a quota
    site.json("PUT", "workspaces/demo/quota", json={"rollouts": 0})
    assert site.json("GET", "quota")["limits"]["rollouts"] is None


def test_workers_that_claim_at_once_stay_within_the_quota(site) -> None:
    here = workspace_of(site)
    site.json("PUT", "workspaces/demo/quota", json={"runs": 2})
    for number in range(8):
        waits(site, here, f"r-{number}")
    found: list[str | None] = []
    threads = [threading.Thread(target=lambda: found.append(claimed(site))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 8
    assert sorted(name for name in found if name) == ["r-0", "r-1"]


def test_a_run_that_could_never_start_is_refused_and_one_that_waits_says_so(ready) -> None:
    ready.json("PUT", "workspaces/demo/quota", json={"rollouts": 4, "runs": 1})
    experiment = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "sums"}

    def submit(size: int, expect: int = 200):
        body = {"experiment_config": experiment, "evaluation_config": {"limit": 4, "batch_size": size}}
        return ready.json("POST", "eval-runs", expect=expect, json=body)

    refused = submit(8, expect=400)
    assert refused["code"] == "QUOTA_EXCEEDED"
    assert "lower the batch size to 4" in refused["hint"]
    submit(4)
    claimed(ready)
    second = submit(1)["name"]
    lines = ready.json("GET", f"eval-runs/{second}/logs")["logs"]
    assert any("1 of 1 runs of this workspace are in use" in line["message"] for line in lines)


def test_datasets_and_bytes_are_asked_before_an_upload(ready) -> None:
    have = ready.json("GET", "quota")["used"]
    assert have["datasets"] == 1
    ready.json("PUT", "workspaces/demo/quota", json={"datasets": 1})
    body = {"file_name": "more", "file_size": 100, "extension": "jsonl"}
    refused = ready.json("POST", "datasets", expect=409, json=body)
    assert (refused["code"], "1 of 1 datasets" in refused["message"]) == ("QUOTA_EXCEEDED", True)
    assert "osmosis workspace quota demo --set datasets=" in refused["hint"]
    ready.json("PUT", "workspaces/demo/quota", json={"datasets": 0, "bytes": have["bytes"] + 99})
    refused = ready.json("POST", "datasets", expect=409, json=body)
    assert "--set storage=" in refused["hint"]
    files = [{"path": "config.json", "size": 100, "sha256": "0" * 64}]
    assert ready.json("POST", "models/base", expect=409, json={"name": "m", "files": files})["code"] == "QUOTA_EXCEEDED"
    ready.json("PUT", "workspaces/demo/quota", json={"bytes": have["bytes"] + 100})
    ready.json("POST", "datasets", json=body)


@pytest.mark.parametrize("wish", [{"runs": -1}, {"bytes": 2**70}, {"datasets": "many"}])
def test_a_quota_that_makes_no_sense_is_refused(shared, wish) -> None:
    shared.json("PUT", "workspaces/demo/quota", expect=400, json=wish)


def test_the_highest_priority_of_a_workspace_starts_first(site) -> None:
    here = workspace_of(site)
    for name in ("first", "second", "third"):
        waits(site, here, name)
    site.json("PUT", "eval-runs/third/priority", json={"priority": 5})
    site.json("PUT", "eval-runs/first/priority", json={"priority": -1})
    assert [claimed(site), claimed(site), claimed(site)] == ["third", "second", "first"]
    begun = site.json("PUT", "eval-runs/third/priority", expect=409, json={"priority": 1})
    assert "is running" in begun["message"]
    site.json("PUT", "eval-runs/third/priority", expect=400, json={"priority": 101})


def test_priority_orders_no_other_workspace(site) -> None:
    site.json("POST", "workspaces", json={"name": "other"})
    here, there = workspace_of(site), workspace_of(site, "other")
    for name in ("a", "b"):
        waits(site, here, name)
        site.json("PUT", f"eval-runs/{name}/priority", json={"priority": 100})
    waits(site, there, "modest")
    assert [claimed(site), claimed(site)] == ["a", "modest"]


@pytest.mark.parametrize(
    ("limit", "asked"),
    [({"gpus": 2}, {"gpus": 1}), ({"cpus": 5}, {"cpus": 2.5}), ({"memory_mb": 4096}, {"memory": "2GB"})],
)
def test_what_jobs_ask_for_waits_for_its_quota(site, limit, asked) -> None:
    here = workspace_of(site)
    site.json("PUT", "workspaces/demo/quota", json=limit)
    for number in range(3):
        waits(site, here, f"r-{number}", resources=asked)
    waits(site, here, "modest")
    has = {"cpus": 64, "memory_mb": 1 << 20, "gpus": 8}
    assert [claimed(site, **has) for _ in range(4)] == ["r-0", "r-1", "modest", None], "who asks for none of it starts"
    (name, most), *_ = limit.items()
    used = site.json("GET", "quota")
    assert (used["used"][name], used["limits"][name]) == (most, most)
    said = site.json("GET", "eval-runs/r-2")["eval_run"]["progress"]["stage"]
    assert said.startswith(f"waits: {most} of {most} ")
    ends(site, "r-0")
    assert claimed(site, **has) == "r-2"


def test_the_members_page_shows_what_there_is_and_may_be(ready) -> None:
    ready.json("PUT", "workspaces/demo/quota", json={"datasets": 7, "bytes": 5_000_000})
    page = ready.http.get("/demo/members").text
    rows = dict(re.findall(r'<th scope="row">([^<]+)</th><td>([^<]*</td><td>.*?)</td></tr>', page))
    assert rows["Datasets"].startswith("1</td><td>7")
    assert rows["Datasets and models"].endswith("5.0 MB")
    assert "no limit" in rows["Runs in flight"]
    assert {"Cores in use", "Memory in use, MB", "GPUs in use"} <= rows.keys()
