"""Tickets: what a scheduler is given in the place of a lease, what it is good for, and how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis.platform import tables
from osmosis.platform.scheduling import leases
from osmosis.records.base import utc_now

from .test_workers import Box, logs_of, submit, worker_token

TAKER = "one process " * 3


class Cluster(Box):
    """A worker whose jobs are a scheduler's."""

    def exchange(self, order: dict[str, Any], expect: int = 200, **claim: Any) -> dict[str, Any]:
        ticket = claim.pop("ticket", order["ticket"])
        body = {"run_id": order["run_id"], "taker": TAKER, **claim}
        answer = self.http.post("/api/jobs/claim", json=body, headers={"Authorization": f"Bearer {ticket}"})
        assert answer.status_code == expect, answer.text
        return dict(answer.json())

    def job(self, order: dict[str, Any]) -> tables.Job:
        return self.site.row(tables.Job, order["job_id"])

    def change(self, order: dict[str, Any], **values: Any) -> None:
        with self.site.platform.db.write() as session:
            session.execute(sa.update(tables.Job).where(tables.Job.id == order["job_id"]).values(**values))


@pytest.fixture
def cluster(ready: Any) -> Cluster:
    return Cluster(ready, worker_token(ready), executor="slurm")


def stage_of(site: Any, run_id: str) -> str:
    progress = site.json("GET", f"eval-runs/{run_id}")["eval_run"]["progress"]
    return str(progress["stage"]) if progress else ""


def test_a_scheduler_is_given_a_ticket_and_never_a_lease(cluster: Cluster) -> None:
    run = submit(cluster.site)
    order = cluster.claim()
    assert order["lease"] == ""
    assert order["ticket"].startswith("ost_")
    cluster.of_job("GET", {**order, "lease": order["ticket"]}, "spec", 409)
    lease = cluster.exchange(order)["lease"]
    assert cluster.of_job("GET", {**order, "lease": lease}, "spec").json()["run_id"] == run["id"]


def test_a_ticket_is_good_once_and_a_second_showing_is_noted(cluster: Cluster) -> None:
    run = submit(cluster.site)
    order = cluster.claim()
    first = cluster.exchange(order)["lease"]
    again = cluster.exchange(order)["lease"]  # the answer was lost
    cluster.of_job("GET", {**order, "lease": first}, "spec", 409)
    cluster.of_job("GET", {**order, "lease": again}, "spec")
    refused = cluster.exchange(order, 409, taker="another process " * 3)
    assert "used already" in refused["message"]
    cluster.exchange(order, 401, taker="another process " * 3)
    assert logs_of(cluster.site, run["id"]).count("presented a second time") == 1
    cluster.of_job("GET", {**order, "lease": again}, "spec")


def test_a_ticket_opens_its_own_job_in_its_time_and_only_unheard(cluster: Cluster) -> None:
    run, other = submit(cluster.site), submit(cluster.site)
    order = cluster.claim()
    cluster.exchange(order, 401, run_id=other["id"])
    cluster.exchange(order, 401, ticket=f"{order['ticket']}x")
    plain = TestClient(cluster.site.anonymous.app, raise_server_exceptions=False)
    body = {"run_id": run["id"], "taker": TAKER}
    heard = plain.post("/api/jobs/claim", json=body, headers={"Authorization": f"Bearer {order['ticket']}"})
    assert (heard.status_code, "https" in heard.json()["message"]) == (403, True)
    cluster.change(order, ticket_until=utc_now() - timedelta(seconds=1))
    assert "expired" in cluster.exchange(order, 401)["message"]
    assert cluster.round(cluster.word(order), slots=0)["end"] == [order["lease_id"]]
    assert "waited until its ticket expired" in logs_of(cluster.site, run["id"])
    assert cluster.claim()["ticket"] != order["ticket"]
    cluster.exchange(order, 401)


def test_while_it_waits_the_lease_is_the_workers_and_the_run_says_where(cluster: Cluster) -> None:
    run = submit(cluster.site)
    order = cluster.claim()
    cluster.started(order, handle={"executor": "slurm", "id": "42"})
    place = "queued in slurm as job 42 (Resources)"
    cluster.change(order, lease_until=utc_now() + timedelta(seconds=1))
    cluster.round(cluster.word(order, place=place), slots=0)
    lease_until = cluster.job(order).lease_until
    assert lease_until is not None
    assert lease_until > utc_now() + timedelta(seconds=10)
    assert stage_of(cluster.site, run["id"]) == place
    assert f"gave its job to slurm, as job 42\n{place}" in logs_of(cluster.site, run["id"])
    cluster.round(cluster.word(order, place=place), slots=0)
    assert logs_of(cluster.site, run["id"]).count(place) == 1

    cluster.exchange(order)
    assert stage_of(cluster.site, run["id"]) != place
    cluster.change(order, lease_until=utc_now() - timedelta(seconds=100))
    cluster.round(cluster.word(order), slots=0)
    assert "sent no heartbeat" in logs_of(cluster.site, run["id"]), "after that the lease is the job's own to extend"


def test_a_stop_takes_a_job_out_of_its_queue_at_once(cluster: Cluster) -> None:
    run = submit(cluster.site)
    order = cluster.claim()
    cluster.site.json("POST", f"eval-runs/{run['id']}/stop", json={})
    cluster.exchange(order, 401)
    assert cluster.round(cluster.word(order), slots=0)["end"] == [order["lease_id"]]
    assert cluster.site.json("GET", f"eval-runs/{run['id']}")["eval_run"]["status"] == "stopped"


def test_what_ended_a_job_decides_what_becomes_of_its_run(cluster: Cluster) -> None:
    run = submit(cluster.site)
    order = cluster.claim()
    gone = {"alive": False, "reason": "slurm ended job 42: its node failed", "cause": "machine"}
    cluster.round(cluster.word(order, **gone), slots=0)
    assert "its node failed" in logs_of(cluster.site, run["id"])
    assert cluster.job(order).starts == 0, "another machine's fault costs the run no start"
    order = cluster.claim()
    gone = {"alive": False, "reason": "slurm ended job 43: it was cancelled", "cause": "final", "words": "the end"}
    cluster.round(cluster.word(order, **gone), slots=0)
    found = cluster.site.json("GET", f"eval-runs/{run['id']}")
    assert found["eval_run"]["status"] == "failed"
    assert found["failure"]["message"] == "slurm ended job 43: it was cancelled; its last output:\nthe end"


def test_the_shards_of_one_run_are_given_together(cluster: Cluster) -> None:
    config = {"limit": 4, "batch_size": 4}
    first = submit(cluster.site, evaluation_config=config, advanced_config={"shards": 3})
    submit(cluster.site)
    orders = cluster.round(slots=4)
    given = [orders["start"], *orders["more"]]
    assert [order["run_id"] for order in given] == [first["id"]] * 3
    assert len({order["ticket"] for order in given}) == len({order["lease_id"] for order in given}) == 3
    one = Cluster(cluster.site, cluster.token, name="local", executor="local")
    assert one.round(slots=4)["more"] == []


def test_a_worker_that_returns_finds_what_waits_and_what_was_not_submitted_goes_back(cluster: Cluster) -> None:
    run = submit(cluster.site, advanced_config={"shards": 2}, evaluation_config={"limit": 4, "batch_size": 4})
    orders = cluster.round(slots=2)
    known, unknown = orders["start"], orders["more"][0]
    cluster.started(known, handle={"executor": "slurm", "id": "42"})
    back = Cluster(cluster.site, cluster.token, ids=[cluster.id], executor="slurm")
    assert [(kept["lease_id"], kept["handle"]["id"]) for kept in back.known["jobs"]] == [(known["lease_id"], "42")]
    back.exchange(unknown, 401)
    back.exchange(known)
    assert "before it was started" in logs_of(cluster.site, run["id"])


def test_a_worker_that_does_not_return_leaves_its_queued_job_to_others(cluster: Cluster) -> None:
    submit(cluster.site)
    order = cluster.claim()
    cluster.change(order, lease_until=utc_now() - timedelta(hours=1))
    leases.reap(cluster.site.platform)
    assert cluster.job(order).state == "waiting"
    cluster.exchange(order, 401)
