"""What a job may say, and until when: leases, rollouts that count once, restarts, stops."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.errors import Conflict
from osmosis.platform import tables
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import leases, queue
from osmosis.platform.scheduling.transitions import Loss
from osmosis.records.base import utc_now
from osmosis.records.run.job import JobResult
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.status import RunStatus
from support import platform_data
from support.platform_data import EVALUATION, a_job, a_worker


class Job:
    """A job as the platform sees it: a run and a lease token."""

    def __init__(self, site, run_id: str, token: str) -> None:
        self.site, self.run_id, self.token = site, run_id, token

    def send(self, path: str, body: Any, expect: int = 200, method: str = "POST") -> Any:
        answer = self.site.anonymous.request(
            method, f"/api/jobs/{self.run_id}/{path}", json=body, headers={"Authorization": f"Bearer {self.token}"}
        )
        assert answer.status_code == expect, answer.text
        return answer

    def rollouts(self, *keys: tuple[int, int], expect: int = 200) -> Any:
        return self.send("rollouts", {"rollouts": [rollout(*key) for key in keys]}, expect).json()

    def finish(self, status: str = "finished", expect: int = 200) -> Any:
        return self.send("finish", {"status": status}, expect).json()

    def row(self) -> tables.Run:
        return self.site.row(tables.Run, self.run_id)

    def starts(self) -> int:
        return self._job().starts

    def lease_until(self) -> datetime:
        return self._job().lease_until

    def _job(self) -> tables.Job:
        return self.site.only(sa.select(tables.Job).where(tables.Job.run_id == self.run_id))


def rollout(row: int, attempt: int = 0) -> dict[str, Any]:
    made = Rollout(
        rollout_id=f"r{row}-{attempt}",
        row_index=row,
        attempt=attempt,
        status=RolloutStatus.SUCCESS,
        scores={"reward": Score(name="reward", value=1.0)},
    )
    return made.model_dump(mode="json")


def claim(site, worker: str = "one") -> Job | None:
    with site.platform.db.write() as session:
        found = queue.claim(session, a_worker(session, worker), 60)
        return Job(site, found.run.id, found.token) if found else None


@pytest.fixture
def job(ready) -> Job:
    ready.json("POST", "eval-runs", json=EVALUATION)
    found = claim(ready)
    assert found
    return found


def release(job: Job, **changes: Any) -> None:
    with job.site.platform.db.write() as session:
        held = leases.require_lease(session, job.run_id, job.token)
        leases.release(session, held, "gone", **{"max_starts": 3, "loss": Loss.EXITED, **changes})


def test_a_job_reports_from_start_to_finish(job) -> None:
    beat = {"stage": "rollouts", "completed": 1, "total": 4}
    assert job.send("heartbeat", beat).json() == {"stop": False}
    assert job.rollouts((0, 0), (1, 0)) == {"stored": 2}
    job.send("logs", {"lines": [{"message": "hello \0 there", "step": "uv"}]})
    job.send("metrics", {"points": [{"key": "k", "step": 1, "value": 2.0}, {"key": "k", "step": 1, "value": 3.0}]})
    assert job.send("rollouts", None, method="GET").json() == {"keys": [[0, "@0", 0], [0, "@1", 0]]}
    assert job.finish() == {"status": "finished"}
    row = job.row()
    assert (row.status, row.progress["completed"]) == ("finished", 1)
    logs = job.site.json("GET", f"eval-runs/{row.name}/logs")["logs"]
    assert "hello  there" in [line["message"] for line in logs]


def test_the_progress_of_a_run_that_is_over_is_its_reports(job) -> None:
    report = platform_data.report(4, 1).to_dict()
    job.send("finish", {"status": "finished", "report": report})
    assert job.row().progress == {"stage": "report", "completed": 4, "total": 4}


def test_a_rollout_counts_once_however_often_it_is_sent(job) -> None:
    assert job.rollouts((0, 0), (0, 0), (1, 0)) == {"stored": 2}
    assert job.rollouts((0, 0), (1, 0), (2, 0)) == {"stored": 1}
    assert job.site.json("GET", f"eval-runs/{job.run_id}/rollouts")["total_count"] == 3


def test_a_rollout_is_known_by_step_row_and_attempt_wherever_its_row_stands(job) -> None:
    def send(*rollouts: dict[str, Any]) -> int:
        return job.send("rollouts", {"rollouts": rollouts}).json()["stored"]

    first = rollout(0) | {"row_key": "a"}
    assert send(first, first | {"step": 1}, first | {"attempt": 1}, first | {"row_key": "b"}) == 4
    assert send(first | {"row_index": 7, "rollout_id": "elsewhere"}) == 0
    keys = job.send("rollouts", None, method="GET").json()["keys"]
    assert sorted(keys) == [[0, "a", 0], [0, "a", 1], [0, "b", 0], [1, "a", 0]]


def test_a_job_of_1_0_sends_no_row_keys_and_gets_them(job) -> None:
    equal = [rollout(row) | {"hashes": {"row": "h"}} for row in (4, 2)]
    assert [job.send("rollouts", {"rollouts": [one]}).json()["stored"] for one in (*equal, *equal)] == [1, 1, 0, 0]
    assert sorted(job.send("rollouts", None, method="GET").json()["keys"]) == [[0, "h", 0], [0, "h#2", 0]]


def test_stored_rollouts_can_be_fetched_whole_by_the_next_job(job) -> None:
    job.rollouts((0, 0), (1, 0), (2, 0))
    answer = job.send("rollouts?bodies=true&limit=2&offset=1", None, method="GET")
    found = [Rollout.model_validate_json(line) for line in answer.text.splitlines()]
    assert [(r.row_index, r.attempt) for r in found] == [(1, 0), (2, 0)]


def test_a_job_that_was_replaced_is_told_so_and_nothing_of_it_is_kept(job) -> None:
    release(job)
    new = claim(job.site, "two")
    assert new.run_id == job.run_id
    for path, body in (
        ("heartbeat", {"stage": "rollouts"}),
        ("rollouts", {"rollouts": [rollout(0)]}),
        ("logs", {"lines": [{"message": "late"}]}),
        ("metrics", {"points": [{"key": "k", "step": 1, "value": 2.0}]}),
        ("finish", {"status": "finished"}),
    ):
        refused = job.send(path, body, expect=409).json()
        assert refused["code"] == "LEASE_LOST"
    job.send("rollouts", None, method="GET", expect=409)
    assert new.send("rollouts", None, method="GET").json() == {"keys": []}
    assert new.row().status == "running"


@pytest.mark.parametrize("token", ["", "osj_guess"])
def test_without_the_lease_token_nothing_is_said_or_stored(job, token) -> None:
    stranger = Job(job.site, job.run_id, token)
    stranger.rollouts((0, 0), expect=409 if token else 401)


def test_a_user_token_does_not_speak_for_a_run(job) -> None:
    user = job.site.http.headers["authorization"].partition(" ")[2]
    Job(job.site, job.run_id, user).rollouts((0, 0), expect=409)


def test_after_the_end_a_late_write_is_dropped_but_the_same_finish_is_fine(job) -> None:
    job.finish()
    assert job.finish() == {"status": "finished"}
    job.rollouts((0, 0), expect=409)
    job.finish("failed", expect=409)


def test_a_stop_reaches_the_job_with_the_next_heartbeat(job) -> None:
    answer = job.site.json("POST", f"eval-runs/{job.run_id}/stop", json={})
    assert (answer["status"], answer["stop_requested"]) == ("running", True)
    assert job.send("heartbeat", {"stage": "rollouts"}).json() == {"stop": True}
    assert job.finish("stopped") == {"status": "stopped"}


def test_many_jobs_are_told_to_speak_less_often_and_get_longer_leases(job) -> None:
    assert job.send("heartbeat", {"stage": "rollouts"}).json() == {"stop": False}
    with job.site.platform.db.write() as session:
        run = session.get_one(tables.Run, job.run_id)
        session.add_all(a_job(run, shard=number, state="held") for number in range(1, 1000))
    assert job.send("heartbeat", {"stage": "rollouts"}).json() == {"stop": False, "every_s": 20.0}
    job.send("rollouts", {"rollouts": [rollout(0)]})  # which asks for no longer one
    until = job.site.only(sa.select(tables.Job.lease_until).where(tables.Job.shard == 0))
    assert until is not None
    assert until > utc_now() + timedelta(seconds=job.site.platform.settings.lease_s)


def test_an_interrupted_job_does_not_end_the_run(job) -> None:
    assert job.finish("stopped") == {"status": "running"}
    again = claim(job.site, "two")
    assert again.run_id == job.run_id
    assert again.starts() == 1  # an interruption is no start


def test_a_run_whose_jobs_keep_vanishing_fails_with_the_reason(job) -> None:
    release(job)
    assert job.row().status == "running"
    for _ in range(2):
        release(claim(job.site))
    row = job.row()
    assert (row.status, job.starts()) == ("failed", 3)
    assert "ended 3 times in a row before anything was stored; last time: gone" in row.failure["message"]
    assert claim(job.site) is None


def test_only_lives_that_stored_nothing_count(job) -> None:
    """A job that dies again and again goes on as long as each life stores something new."""
    for row in range(5):
        assert job.rollouts((row, 0)) == {"stored": 1}
        release(job)
        assert job.row().status == "running"
        job = claim(job.site)
    for life in range(2):
        assert job.rollouts((0, 0)) == {"stored": 0}
        release(job)
        job = claim(job.site) if life == 0 else job
    assert job.row().status == "failed"


def test_a_job_the_platform_itself_ended_does_not_count_as_a_start(job) -> None:
    for _ in range(5):
        release(job, loss=Loss.WORKER_STOPPED)
        job = claim(job.site)
    assert (job.row().status, job.starts()) == ("running", 1)


def test_a_stop_before_the_next_start_ends_the_run(job) -> None:
    release(job)
    assert job.site.json("POST", f"eval-runs/{job.run_id}/stop", json={})["status"] == "stopped"


def test_a_heartbeat_extends_the_lease(job) -> None:
    with job.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(lease_until=utc_now() - timedelta(seconds=5)))
    before = utc_now()
    job.send("heartbeat", {"stage": "rollouts"})
    assert job.lease_until() > before + timedelta(seconds=50)


def test_values_given_with_a_run_are_gone_when_it_is_over(ready) -> None:
    secrets = {"required": ["KEY"], "provided": {"KEY": "v"}}
    ready.json("POST", "eval-runs", json={**EVALUATION, "secrets": secrets})
    job = claim(ready)
    assert ready.stored(sa.select(tables.Secret.scope)) == ["run"]
    job.finish()
    assert ready.stored(sa.select(tables.Secret)) == []


def test_many_workers_never_get_the_same_run(ready) -> None:
    for _ in range(6):
        ready.json("POST", "eval-runs", json=EVALUATION)
    got: list[str] = []

    def work(name: str) -> None:
        while (job := claim(ready, name)) is not None:
            got.append(job.run_id)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == len(set(got)) == 6


def test_runs_are_claimed_in_the_order_of_their_submit(ready) -> None:
    names = [ready.json("POST", "eval-runs", json=EVALUATION)["name"] for _ in range(3)]
    assert [claim(ready).row().name for _ in range(3)] == names


def test_every_change_of_status_is_an_event_and_nonsense_is_refused(job) -> None:
    job.finish()
    with job.site.platform.db.write() as session:
        run = session.get_one(tables.Run, job.run_id)
        with pytest.raises(Conflict):
            lifecycle.switch_status(session, run, RunStatus.RUNNING)
        with pytest.raises(Conflict):
            lifecycle.end(session, run, JobResult(status=RunStatus.FAILED), "no")
        assert [e.status for e in lifecycle.list_events(session, run.id)] == ["pending", "running", "finished"]
