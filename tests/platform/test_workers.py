"""Workers elsewhere: what a worker token opens and what it does not, how jobs are given, ended and taken over."""

from __future__ import annotations

import json
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from osmosis._version import __version__
from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.scheduling import leases, workers
from osmosis.records.api.accounts import NewToken
from osmosis.records.base import utc_now
from osmosis.records.run.job import JOB_PROTOCOL
from support.platform_data import EVALUATION

from .test_jobs_api import rollout

HELLO = {
    "name": "box",
    "machine": "m1",
    "version": __version__,
    "protocol": JOB_PROTOCOL,
    "kinds": ["eval"],
    "max_jobs": 2,
}


class Box:
    """A worker on another machine, without its processes."""

    def __init__(self, site: Any, token: str, **hello: Any) -> None:
        self.site, self.token = site, token
        self.http = TestClient(site.anonymous.app, base_url="https://testserver", raise_server_exceptions=False)
        self.known = self.say("hello", {**HELLO, **hello})
        self.id = self.known["worker_id"]

    def say(self, what: str, body: dict[str, Any], expect: int = 200) -> Any:
        answer = self.http.post(f"/api/workers/{what}", json=body, headers={"Authorization": f"Bearer {self.token}"})
        assert answer.status_code == expect, answer.text
        return answer.json()

    def round(self, *jobs: dict[str, Any], slots: int = 1, expect: int = 200, **more: Any) -> Any:
        return self.say("claim", {"worker_id": self.id, "jobs": list(jobs), "slots": slots, **more}, expect)

    def claim(self) -> dict[str, Any]:
        order = self.round()["start"]
        assert order is not None
        return dict(order)

    def word(self, order: dict[str, Any], **state: Any) -> dict[str, Any]:
        return {"job_id": order["job_id"], "lease_id": order["lease_id"], "alive": True, **state}

    def started(self, order: dict[str, Any], **said: Any) -> None:
        body = {"worker_id": self.id, "job_id": order["job_id"], "lease_id": order["lease_id"]}
        self.say("started", {**body, "handle": {"pid": 7}, **said})

    def of_job(self, method: str, order: dict[str, Any], path: str, expect: int = 200, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {order['lease']}", **more.pop("headers", {})}
        answer = self.http.request(method, f"/api/jobs/{order['run_id']}/{path}", headers=headers, **more)
        assert answer.status_code == expect, answer.text
        return answer


def worker_token(site: Any, **wish: Any) -> str:
    made = site.json("POST", "tokens", json={"name": "box", "scopes": ["worker"], **wish})
    return str(made["token"])


@pytest.fixture
def box(ready: Any) -> Box:
    ready.http.app.state.reaper.stop()  # each look at leases is the test's own
    return Box(ready, worker_token(ready))


def submit(site: Any, **more: Any) -> dict[str, Any]:
    return dict(site.json("POST", "eval-runs", json={**EVALUATION, **more}))


def logs_of(site: Any, run_id: str) -> str:
    return "\n".join(line["message"] for line in site.json("GET", f"eval-runs/{run_id}/logs?limit=200")["logs"])


def test_a_worker_is_given_a_job_and_the_job_everything_else(box: Box) -> None:
    secrets = {"required": ["KEY"], "provided": {"KEY": "the value"}}
    run = submit(box.site, secrets=secrets)
    order = box.claim()
    assert (order["run_id"], order["run_name"]) == (run["id"], "multiply-1")
    box.started(order)
    spec = box.of_job("GET", order, "spec").json()
    assert [spec.get(name, "") for name in ("repository", "dataset_path", "work_dir", "cache_dir")] == [""] * 4
    assert str(box.site.platform.settings.data_dir) not in json.dumps(spec)
    assert "the value" not in json.dumps(spec)
    given = box.of_job("POST", order, "secrets", json={"taker": "t" * 30}).json()
    assert given == {"values": {"KEY": "the value"}}
    assert "job started on box (process 7)" in logs_of(box.site, run["id"])
    box.of_job("POST", order, "finish", json={"status": "finished"})
    assert box.round(box.word(order))["end"] == [order["lease_id"]], "its process is not needed any more"


def test_secrets_are_handed_over_once_and_never_in_the_clear(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    plain = TestClient(box.site.anonymous.app, raise_server_exceptions=False)
    lease = {"Authorization": f"Bearer {order['lease']}"}
    refused = plain.post(f"/api/jobs/{order['run_id']}/secrets", json={"taker": "t" * 30}, headers=lease)
    assert (refused.status_code, "https" in refused.json()["message"]) == (403, True)
    box.of_job("POST", order, "secrets", json={"taker": "t" * 30})
    box.of_job("POST", order, "secrets", json={"taker": "t" * 30})  # the answer was lost
    stolen = box.of_job("POST", order, "secrets", 409, json={"taker": "another" * 5})
    assert "already" in stolen.json()["message"]


def test_a_commit_travels_without_its_history(box: Box, tmp_path: Path) -> None:
    commit = box.site.push({"rollouts/multiply/main.py": "print('changed')\n"})
    submit(box.site)
    order = box.claim()
    (tmp_path / "x.bundle").write_bytes(box.of_job("GET", order, "source").content)

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    (tmp_path / ".git" / "shallow").write_text(f"{commit}\n")
    git("fetch", "-q", "x.bundle", "refs/heads/run")
    assert git("rev-parse", "FETCH_HEAD") == commit
    assert git("rev-list", "--count", "FETCH_HEAD") == "1"
    assert "changed" in git("show", "FETCH_HEAD:rollouts/multiply/main.py")


def test_only_the_selected_rows_are_sent_and_the_rest_after_a_cut(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    whole = box.of_job("GET", order, "dataset").content
    head, *lines = [json.loads(line) for line in whole.splitlines()]
    assert head == {"rows": 4, "by_id": False}
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert lines[2]["data"]["user_prompt"] == "What is 2 x 2?"
    rest = box.of_job("GET", order, "dataset", 206, headers={"Range": "bytes=100-"}).content
    assert whole[:100] + rest == whole


def test_artifacts_come_in_pieces_and_lead_nowhere_else(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    box.of_job("POST", order, "rollouts", json={"rollouts": [rollout(0)]})
    where = "artifacts/r0-0/plots/a.txt?size=10"
    assert box.of_job("PUT", order, where, content=b"01234").json() == {"complete": False}
    assert box.of_job("GET", order, "artifacts/r0-0").json() == {"files": {"plots/a.txt": 5}}
    box.of_job("PUT", order, f"{where}&offset=7", 409, content=b"789")
    assert box.of_job("PUT", order, f"{where}&offset=5", content=b"56789").json() == {"complete": True}
    listed = box.site.json("GET", f"eval-runs/{order['run_id']}/samples/manifest?types=artifacts")
    assert "row_0_run_0/plots/a.txt" in json.dumps(listed)
    for path in ("..%2F..%2Fx", "a//b"):
        refused = box.of_job("PUT", order, f"artifacts/r0-0/{path}?size=1", content=b"x", expect=400)
        assert "not the path of a file" in refused.json()["message"]
    assert not list(box.site.platform.settings.runs_dir.rglob("x"))
    too_large = box.of_job("PUT", order, f"artifacts/r0-0/big?size={10**12}", 413, content=b"x")
    assert "may have" in too_large.json()["message"]


def test_what_was_made_to_be_sent_goes_with_the_run(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    box.of_job("GET", order, "dataset")
    sent = box.site.platform.settings.sent_dir
    leases.reap(box.site.platform)
    assert [folder.name for folder in sent.iterdir()] == [order["run_id"]]
    box.of_job("POST", order, "finish", json={"status": "finished"})
    leases.reap(box.site.platform)
    assert not list(sent.iterdir())
    assert box.round(kept=[order["run_id"], "never-there"])["forget"] == [order["run_id"], "never-there"]


def test_a_lease_opens_one_run_and_nothing_else(box: Box) -> None:
    one, other = submit(box.site), submit(box.site)
    order = box.claim()
    assert order["run_id"] == one["id"]
    stolen = {**order, "run_id": other["id"]}
    for method, path in (("GET", "spec"), ("GET", "source"), ("GET", "dataset"), ("GET", "rollouts")):
        box.of_job(method, stolen, path, 409)
    box.of_job("POST", stolen, "secrets", 409, json={"taker": "t" * 30})
    lease = {"Authorization": f"Bearer {order['lease']}"}
    assert box.http.get("/api/cli/workspaces", headers=lease).status_code == 401
    assert box.http.post("/api/workers/hello", json=HELLO, headers=lease).status_code == 401


def test_a_worker_token_opens_nothing_but_work_and_others_do_not_open_it(box: Box) -> None:
    bearer = {"Authorization": f"Bearer {box.token}"}
    assert box.http.get("/api/cli/workspaces", headers=bearer).status_code == 403
    assert box.site.http.post("/api/workers/hello", json=HELLO).status_code == 403


def test_a_revoked_token_ends_the_claims_but_not_the_jobs(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    token = next(one for one in box.site.json("GET", "tokens")["tokens"] if one["name"] == "box")
    box.site.json("DELETE", f"tokens/{token['id']}", expect=204)
    box.round(expect=401)
    box.of_job("POST", order, "finish", json={"status": "finished"})


@pytest.mark.parametrize("change", ["removed", "member"])
def test_a_worker_gets_no_more_work_when_who_made_it_may_have_none(ready: Any, change: str) -> None:
    """Its jobs come to their end; the token is as it was."""
    submit(ready)
    with ready.platform.db.write() as session:
        ada = users.create_user(session, "ada", email="ada@localhost", name="Ada")
        workspace = session.query(tables.Workspace).filter_by(name="demo").one()
        session.add(tables.Member(workspace_id=workspace.id, user_id=ada.id, role="admin"))
        login = tokens.issue(session, ada, "laptop").row
        wish = NewToken(name="box", scopes=["worker"], workspace="demo")
        session.flush()
        text = tokens.create_named(session, login, wish).text
    box = Box(ready, text)
    order = box.claim()
    box.started(order)
    if change == "removed":
        ready.json("DELETE", "members/ada", expect=204)
    else:
        ready.json("PUT", "members/ada", json={"role": "member"})
    box.round(expect=403)
    box.say("hello", HELLO, expect=403)
    box.of_job("POST", order, "finish", json={"status": "finished"})


def test_a_worker_of_one_workspace_gets_its_runs_only(ready: Any) -> None:
    ready.json("POST", "workspaces", json={"name": "other"})
    submit(ready)
    elsewhere = Box(ready, worker_token(ready, workspace="other"))
    assert elsewhere.round()["start"] is None
    assert Box(ready, worker_token(ready, workspace="demo")).claim()


def test_a_worker_of_another_protocol_is_told_so_and_gets_no_work(ready: Any) -> None:
    submit(ready)
    old = Box(ready, worker_token(ready), version="0.9", protocol=JOB_PROTOCOL + 1)
    assert "speaks another job protocol" in old.known["note"]
    assert old.round()["start"] is None
    row = ready.json("GET", "workers")["workers"][0]
    assert (row["name"], row["state"]) == ("box", "unfit")
    assert f"osmosis-ai=={__version__}" in row["note"]


def test_a_training_run_waits_for_a_worker_that_can_train(box: Box) -> None:
    experiment = {"rollout": "multiply", "entrypoint": "main.py", "model_path": "Qwen/Qwen3-0.6B", "dataset": "sums"}
    body = {"experiment_config": experiment, "training_config": {"rollout_batch_size": 4}}
    box.site.json("POST", "training-runs", json=body)
    assert box.round()["start"] is None
    run = submit(box.site)
    assert box.claim()["run_id"] == run["id"]


def test_a_job_that_died_goes_elsewhere_with_its_last_words(box: Box) -> None:
    run = submit(box.site)
    order = box.claim()
    answer = box.round(box.word(order, alive=False, exit_code=9, words="boom"), slots=0)
    assert answer["end"] == [order["lease_id"]]
    assert "ended with exit code 9 without a result; its last output:\nboom" in logs_of(box.site, run["id"])
    other = Box(box.site, worker_token(box.site), name="other")
    again = other.claim()
    assert (again["run_id"], again["lease_id"] != order["lease_id"]) == (run["id"], True)
    assert box.round(box.word(order))["end"] == [order["lease_id"]], "what it says of the old lease changes nothing"
    assert box.round(box.word(again))["end"] == [again["lease_id"]], "another worker's job is none of its own"
    assert other.round(other.word(again))["end"] == []


def test_a_worker_that_is_started_again_keeps_its_jobs(box: Box) -> None:
    run = submit(box.site)
    order = box.claim()
    box.started(order)
    again = Box(box.site, box.token, ids=[box.id])
    assert again.id == box.id
    kept = again.known["jobs"]
    assert [(job["job_id"], job["handle"]) for job in kept] == [(order["job_id"], {"pid": 7})]
    assert again.round(again.word(order))["end"] == []
    assert "its worker was restarted; the job continues" in logs_of(box.site, run["id"])
    stranger = Box(box.site, worker_token(box.site, workspace="demo"), ids=[box.id])
    assert (stranger.id == box.id, stranger.known["jobs"]) == (False, [])


def test_a_worker_that_leaves_takes_nothing_with_it(box: Box) -> None:
    run = submit(box.site)
    order = box.claim()
    box.say("leave", {"worker_id": box.id, "jobs": [box.word(order, alive=False)]})
    with box.site.platform.db.read() as session:
        job = session.scalars(sa.select(tables.Job)).one()
        assert (job.state, job.starts) == ("waiting", 0)
        worker = session.get_one(tables.Worker, box.id)
        assert workers.describe_state(worker) == "stopped"
    assert box.claim()["run_id"] == run["id"]


def test_a_start_that_failed_is_tried_again_after_a_while(box: Box) -> None:
    run = submit(box.site)
    box.started(box.claim(), handle=None, problem="its job could not be started: no space left on device")
    assert "no space left" in logs_of(box.site, run["id"])
    assert "the next try follows in" in logs_of(box.site, run["id"])
    assert box.round()["start"] is None, "whoever refused a moment ago would refuse again"
    with box.site.platform.db.write() as session:
        job = session.scalars(sa.select(tables.Job)).one()
        assert job.not_before is not None
        job.not_before -= timedelta(seconds=leases.MAX_PAUSE_S)
    assert box.claim()["run_id"] == run["id"]


def lose(box: Box, order: dict[str, Any]) -> None:
    gone = {"alive": False, "cause": "machine", "reason": "slurm ended job 7: its node failed"}
    box.round(box.word(order, **gone), slots=0)


def test_machines_that_keep_failing_end_a_run_that_gets_nowhere(box: Box) -> None:
    """What was stored in between shows that it gets somewhere: it goes on, however often it loses its machine."""
    run = submit(box.site)
    for number in range(5):
        order = box.claim()
        stored = {"rollouts": [rollout(number)]}
        box.of_job("POST", order, "rollouts", json=stored)
        lose(box, order)
    for _ in range(2):
        order = box.claim()
        box.of_job("POST", order, "rollouts", json=stored)  # nothing new
        lose(box, order)
    found = box.site.json("GET", f"eval-runs/{run['id']}")
    assert found["eval_run"]["status"] == "failed"
    message = found["failure"]["message"]
    assert message.startswith("its machine or executor failed 3 times in a row before anything was stored")
    assert "last time: slurm ended job 7: its node failed" in message
    assert box.round()["start"] is None


def test_what_a_scheduler_interrupts_is_not_started_for_ever(box: Box) -> None:
    slurm = Box(box.site, box.token, name="slurm", executor="slurm")
    run = submit(box.site)
    for _ in range(3):
        order = slurm.claim()
        body = {"run_id": order["run_id"], "taker": "t" * 30}
        claimed = slurm.http.post("/api/jobs/claim", json=body, headers={"Authorization": f"Bearer {order['ticket']}"})
        slurm.of_job("POST", {**order, **claimed.json()}, "finish", json={"status": "stopped"})
    message = box.site.json("GET", f"eval-runs/{run['id']}")["failure"]["message"]
    assert message.startswith("its machine or executor failed 3 times in a row")
    assert "the job was interrupted" in message


def test_a_draining_worker_keeps_what_it_has_and_gets_no_more(box: Box) -> None:
    submit(box.site)
    submit(box.site)
    order = box.claim()
    box.site.json("POST", "workers/box/drain", json={})
    answer = box.round(box.word(order))
    assert (answer["drain"], answer.get("start"), answer["end"]) == (True, None, [])
    assert "worker.drain" in audited(box)


def audited(box: Box) -> set[str]:
    return set(box.site.stored(sa.select(tables.AuditEntry.action).where(tables.AuditEntry.target == "box")))


def test_a_removed_worker_is_refused_and_its_jobs_go_on(box: Box) -> None:
    run = submit(box.site)
    order = box.claim()
    assert box.site.json("GET", "workers")["workers"][0]["runs"] == ["multiply-1"]
    assert box.site.json("DELETE", "workers/box") == {"released": 1}
    assert "worker.remove" in audited(box)
    box.round(box.word(order), expect=403)
    box.of_job("POST", order, "heartbeat", 409, json={"stage": "rollouts"})
    assert Box(box.site, worker_token(box.site)).claim()["run_id"] == run["id"]


def test_two_workers_of_one_name_are_told_apart(box: Box) -> None:
    assert Box(box.site, box.token).known["name"] == "box-2"


def test_leases_of_a_lost_worker_run_out(box: Box) -> None:
    run = submit(box.site)
    box.claim()
    past, now = utc_now().replace(year=2020), utc_now() - timedelta(seconds=1)
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(lease_until=now))
    leases.reap(box.site.platform)
    assert "its lease expired" not in logs_of(box.site, run["id"]), "its worker is there, and says so first"
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Worker).values(last_seen=past))
    leases.reap(box.site.platform, gap="the platform was suspended for 100 s")
    assert "was suspended" in logs_of(box.site, run["id"])
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(lease_until=past))
    leases.reap(box.site.platform)
    assert "the job sent nothing and its lease expired" in logs_of(box.site, run["id"])
    with box.site.platform.db.read() as session:
        job = session.scalars(sa.select(tables.Job)).one()
        assert (job.state, job.starts, job.lost) == ("waiting", 0, 1), "nothing of the job's own failed"


def test_a_clock_that_is_set_back_makes_no_lease_of_a_dead_job_longer(box: Box) -> None:
    run = submit(box.site)
    box.claim()
    back = utc_now() - timedelta(hours=5)
    leases.reap(box.site.platform, now=back)
    assert "its lease expired" not in logs_of(box.site, run["id"])
    leases.reap(box.site.platform, now=back + timedelta(minutes=3))
    assert "the job sent nothing and its lease expired" in logs_of(box.site, run["id"])
    assert box.site.only(sa.select(tables.Job)).state == "waiting"


def test_a_silent_job_whose_worker_is_there_costs_a_start(box: Box) -> None:
    submit(box.site)
    box.claim()
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(lease_until=utc_now().replace(year=2020)))
    leases.reap(box.site.platform)
    with box.site.platform.db.read() as session:
        job = session.scalars(sa.select(tables.Job)).one()
        assert (job.state, job.starts, job.lost) == ("waiting", 1, 0)


def test_a_run_that_cannot_be_started_fails_and_says_why(box: Box) -> None:
    run = submit(box.site)
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Run).values(repository_id=None))
    assert box.round()["start"] is None
    ended = box.site.json("GET", f"eval-runs/{run['id']}")
    assert ended["eval_run"]["status"] == "failed"
    assert "no longer connected" in json.dumps(ended)
