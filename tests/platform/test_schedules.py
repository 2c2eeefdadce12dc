"""`[schedule]`: what the platform submits when it is due, of which commit and with whose secrets, and what it says."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.runs import lifecycle, schedules
from osmosis.records.base import utc_now
from osmosis.records.run.job import JobResult
from osmosis.records.run.status import RunStatus
from support.platform_data import EXPERIMENT, report

from .conftest import Site
from .test_notices import put_secret

DAY = timedelta(days=1)


def submit(site: Site, every: str = "1d", expect: int = 200, **body: Any) -> Any:
    body = {"experiment_config": EXPERIMENT, "schedule_config": {"every": every, "name": "nightly"}, **body}
    return site.json("POST", "eval-runs", json=body, expect=expect)


def end_all(site: Site) -> None:
    with site.platform.db.write() as session:
        for run in session.scalars(sa.select(tables.Run).where(tables.Run.status == "pending")):
            lifecycle.switch_status(session, run, RunStatus.RUNNING)
            lifecycle.end(session, run, JobResult(status=RunStatus.FINISHED, report=report(completed=10)), "")


def runs(site: Site) -> list[tables.Run]:
    return site.stored(sa.select(tables.Run).order_by(tables.Run.created_at))


def row(site: Site) -> Any:
    (only,) = site.json("GET", "schedules")["schedules"]
    return only


def actions(site: Site) -> list[tuple[str, str]]:
    with site.platform.db.read() as session:
        entries = sa.select(tables.AuditEntry).where(tables.AuditEntry.actor == "osmosis")
        return [(entry.action, entry.target) for entry in session.scalars(entries.order_by(tables.AuditEntry.id))]


def test_the_next_run_is_of_the_newest_commit_and_nobodys_own(ready: Site) -> None:
    first = submit(ready, tags=["nightly"])
    begun = utc_now()
    schedules.submit_due(ready.platform, begun + timedelta(hours=23))
    assert len(runs(ready)) == 1
    end_all(ready)
    commit = ready.push({"rollouts/multiply/main.py": "print('newer')\n"})
    for _ in range(2):  # the second time none is due
        schedules.submit_due(ready.platform, begun + DAY)
    _, again = runs(ready)
    assert (again.commit_sha, again.creator_id, again.tags) == (commit, None, ["nightly"])
    assert again.config["schedule"] == {"every": "1d", "name": "nightly"}
    detail = ready.json("GET", f"eval-runs/{again.name}")
    assert detail["events"][0]["reason"] == "submitted by the schedule nightly"
    listed = row(ready)
    assert (listed["last_run_name"], listed["last_run_status"], listed["error"]) == (again.name, "pending", "")
    assert abs(datetime.fromisoformat(listed["next_at"]) - begun - 2 * DAY) < timedelta(minutes=1)
    assert actions(ready) == [("run.submit", again.name)]
    begin = ready.only(sa.select(tables.AuditEntry).filter_by(action="schedule.begin"))
    assert (begin.actor, begin.target, begin.details) == ("local", "nightly", {"every": "1d"})
    assert first["name"] != again.name


def test_missed_times_are_one_run_and_a_run_in_progress_is_waited_for(ready: Site) -> None:
    submit(ready, notify_config={"slack_secret": "SLACK_URL"}, expect=400)
    put_secret(ready, "SLACK_URL", "https://hooks.example.com/s3cret")
    submit(ready, notify_config={"slack_secret": "SLACK_URL"})
    begun = utc_now()
    ready.http.app.state.notifier.stop()
    schedules.submit_due(ready.platform, begun + 5.5 * DAY)
    assert len(runs(ready)) == 1
    assert row(ready)["error"] == "multiply-1 of the time before is still pending"
    assert abs(datetime.fromisoformat(row(ready)["next_at"]) - begun - 6 * DAY) < timedelta(minutes=1)
    with ready.platform.db.read() as session:
        (notice,) = session.scalars(sa.select(tables.Notice))
        entry = session.scalars(sa.select(tables.AuditEntry).where(tables.AuditEntry.actor == "osmosis")).one()
    assert (notice.body["event"], notice.owner_id, notice.run_id) == ("schedule.failed", None, None)
    assert notice.body["text"] == "schedule nightly submitted no run: multiply-1 of the time before is still pending"
    assert (entry.action, entry.target, entry.token) == ("schedule.failed", "nightly", "schedule")
    end_all(ready)
    schedules.submit_due(ready.platform, begun + 6 * DAY)
    assert [run.name for run in runs(ready)] == ["multiply-1", "multiply-2"]
    assert row(ready)["error"] == ""


def test_it_has_the_workspaces_secrets_alone(ready: Site) -> None:
    secrets = {"required": ["API_KEY"]}
    for scope, expect in (("user", 400), ("workspace", 200)):
        ready.json("POST", "environment-secrets", json={"name": "API_KEY", "value": "x", "scope": scope})
        answer = submit(ready, secrets=secrets, expect=expect)
        if expect == 400:
            assert [issue["key"] for issue in answer["issues"]] == ["schedule"]
            assert answer["hint"] == "osmosis secret set API_KEY --scope workspace"
    assert submit(ready, secrets={**secrets, "provided": {"OWN": "y"}}, expect=400)["issues"][0]["key"] == "schedule"
    begun = utc_now()
    end_all(ready)
    schedules.submit_due(ready.platform, begun + DAY)
    mine, repeated = runs(ready)
    assert (mine.secret_scopes, repeated.secret_scopes) == ({"API_KEY": "user_override"}, {"API_KEY": "workspace"})
    end_all(ready)
    ready.json("DELETE", "environment-secrets", expect=204, json={"name": "API_KEY", "scope": "workspace"})
    schedules.submit_due(ready.platform, begun + 2 * DAY)
    assert "without API_KEY" in row(ready)["error"]
    put_secret(ready, "API_KEY", "z")
    schedules.submit_due(ready.platform, begun + 3 * DAY)
    assert row(ready)["error"] == ""
    assert len(runs(ready)) == 3


def test_it_is_replaced_by_name_and_stopped_by_command_and_page(ready: Site) -> None:
    submit(ready)
    submit(ready, every="12h")
    assert (row(ready)["every"], row(ready)["creator_name"]) == ("12h", "local")
    with ready.platform.db.write() as session:
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        looker = users.create_user(session, "looker", email="looker@example.com", name="looker")
        session.add(tables.Member(workspace_id=workspace.id, user_id=looker.id, role="viewer"))
        session.flush()
        headers = {"Authorization": f"Bearer {tokens.issue(session, looker, 'x').text}", "X-Osmosis-Workspace": "demo"}
    assert ready.anonymous.delete("/api/cli/schedules/nightly", headers=headers).status_code == 403
    assert "nightly" in ready.anonymous.get("/demo/repository", headers=headers).text
    assert "/demo/schedules/stop" not in ready.anonymous.get("/demo/repository", headers=headers).text
    page = ready.http.get("/demo/repository").text
    assert 'action="/demo/schedules/stop"' in page
    stopped = ready.http.post("/demo/schedules/stop", data={"name": "nightly"}, follow_redirects=False)
    assert stopped.status_code == 303
    assert ready.json("GET", "schedules") == {"schedules": []}
    submit(ready)
    ready.json("DELETE", "schedules/nightly", expect=204)
    assert "no schedule 'nightly'" in ready.json("DELETE", "schedules/nightly", expect=404)["message"]
    end_all(ready)
    schedules.submit_due(ready.platform, utc_now() + 9 * DAY)
    assert len(runs(ready)) == 3


@pytest.mark.parametrize("every", ["soon", "0d", "91d", "1w", "1d ", "-1d", 5])
def test_a_time_that_is_none_is_refused(shared: Site, every: Any) -> None:
    assert submit(shared, every=every, expect=400)["issues"][0]["key"].startswith("schedule")
