"""`eval decide --submit`: what the platform runs for each look, when it stops and goes on, and what its page shows."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.platform import tables
from osmosis.platform.auth import tokens, users
from osmosis.platform.runs import decisions, lifecycle, rollouts
from osmosis.records.run.job import JobResult
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, Score, Usage
from osmosis.records.run.status import RunStatus
from support.platform_data import EXPERIMENT, report

from .conftest import Site


@pytest.fixture
def decider(ready: Site) -> Site:
    ready.http.app.state.decider.stop()  # type: ignore[attr-defined]  # each look is taken by the test
    return ready


def ask(site: Site, margin: float = 0.1, expect: int = 200, name: str = "d", **limits: Any) -> Any:
    study = {
        "name": name,
        "questions": [{"left": "off", "right": "on", "margin": margin}],
        "arms": {"on": {"env.TOOLS": "on"}, "off": {"env.TOOLS": "off"}},
        "limits": limits,
        "facts": {"words": [margin]},
    }
    configs = {arm: {"experiment_config": EXPERIMENT, "env_config": {"TOOLS": arm}} for arm in ("on", "off")}
    answer = site.json("POST", "decisions", json={"study": study, "configs": configs}, expect=expect)
    return answer["decisions"][0] if expect == 200 else answer


def runs(site: Site) -> list[tables.Run]:
    query = sa.select(tables.Run).options(sa.orm.undefer(tables.Run.rows))
    return site.stored(query.order_by(tables.Run.created_at, tables.Run.name))


def end(site: Site, lost: int = 0, cost: float = 0.0, **scores: float) -> None:
    """End what runs: `off` passes that share of its rows, `on` all; with `lost`, so many rollouts are never made."""
    with site.platform.db.write() as session:
        for run in session.scalars(sa.select(tables.Run).where(tables.Run.status == "pending")):
            passed = scores.get(run.config["env"]["TOOLS"], 1.0) * len(run.rows)
            made = [
                Rollout(
                    rollout_id=f"{run.name}-{row}", row_index=row, row_key=str(row), attempt=0, status="success",
                    scores={"reward": Score(value=float(i < passed))}, usage=Usage(cost_usd=cost),
                )
                for i, row in enumerate(run.rows[lost:])
            ]  # fmt: skip
            rollouts.store(session, run.id, made)
            lifecycle.switch_status(session, run, RunStatus.RUNNING)
            failure = Failure(phase=Phase.SETUP, category=Category.CONNECTION, message="no answer") if lost else None
            status = RunStatus.FAILED if lost else RunStatus.FINISHED
            result = JobResult(status=status, failure=failure, report=report(rows=len(made), attempts=1))
            lifecycle.end(session, run, result, "")


def state(site: Site) -> Any:
    return site.json("GET", "decisions", params={"name": "d"})["decisions"][0]


def test_looks_are_runs_of_one_commit_until_the_answer(decider: Site) -> None:
    assert ask(decider)["status"] == "running"
    for _ in range(2):  # the second time, both run
        decisions.advance_all(decider.platform)
    on, off = runs(decider)
    assert (on.name, off.name) == ("d--on--part1", "d--off--part1")
    assert off.rows == on.rows
    assert len(off.rows) == 20
    assert off.creator_id == on.creator_id is not None
    detail = decider.json("GET", f"eval-runs/{on.name}")
    assert detail["events"][0]["reason"] == "submitted by the decision d"
    decider.push({"rollouts/multiply/main.py": "print('newer')\n"})
    end(decider, off=0.8)
    decisions.advance_all(decider.platform)
    more = runs(decider)[2:]
    assert [run.name for run in more] == ["d--on--part2", "d--off--part2"]
    assert {run.commit_sha for run in runs(decider)} == {off.commit_sha}
    assert len(more[0].rows) == 8
    assert not set(more[0].rows) & set(off.rows)
    end(decider, off=0.0)
    decisions.advance_all(decider.platform)
    decided = state(decider)
    (question,) = decided["study"]["questions"]
    assert (decided["status"], question["answer"], question["rows"]) == ("decided", "no", 28)
    assert question["difference"] == pytest.approx(-12 / 28)
    assert decided["runs"]["d--off"][1]["name"] == "d--off--part2"
    assert ask(decider)["status"] == "decided"
    assert "began with other values of words" in ask(decider, margin=0.2, expect=400)["message"]
    assert len(runs(decider)) == 4

    page = decider.http.get("/decisions", params={"workspace": "demo"}).text
    assert f'href="/decisions/{decided["id"]}"' in page
    page = decider.http.get(f"/decisions/{decided['id']}").text
    for text in ("off &gt;= on - 0.1", "-0.429", ">part2<", "of at most 80", "env.TOOLS", "not needed", "forest"):
        assert text in page
    assert decider.http.get(f"/decisions/{decided['id']}.json").json()["spent"]["rollouts"] == 56


def test_rows_that_earlier_runs_settled_come_less_often(decider: Site) -> None:
    ask(decider)
    for _ in range(8):
        decisions.advance_all(decider.platform)
        end(decider, off=0.5)
    settled = {
        row for run in runs(decider) if run.config["env"]["TOOLS"] == "on" for row in run.rows[: len(run.rows) // 2]
    }
    again = ask(decider, name="e")
    assert set(again["study"]["settled"]) == settled
    assert state(decider)["study"]["settled"] == []


def test_a_lost_run_stops_it_and_the_same_command_goes_on(decider: Site) -> None:
    ask(decider)
    decisions.advance_all(decider.platform)
    end(decider, lost=3)
    decisions.advance_all(decider.platform)
    stopped = state(decider)
    assert stopped["status"] == "stopped"
    assert stopped["problem"] == "run d--on--part1 lacks 3 rollouts of this look: no answer"
    decisions.advance_all(decider.platform)
    assert len(runs(decider)) == 2
    assert ask(decider)["status"] == "running"
    decisions.advance_all(decider.platform)
    again = runs(decider)[2:]
    assert [(run.name, run.rows) for run in again] == [
        (f"d--{arm}--part2", runs(decider)[0].rows[:3]) for arm in ("on", "off")
    ]
    decider.json("POST", "decisions/d/stop")
    assert (state(decider)["problem"], {run.status for run in again}) == ("stopped by local", {"pending"})
    assert {run.status for run in runs(decider)[2:]} == {"stopped"}
    decider.json("POST", "decisions/d/stop", expect=409)
    with decider.platform.db.write() as session:
        entries = sa.select(tables.AuditEntry).where(tables.AuditEntry.action.startswith("decision."))
        log = [
            (entry.actor, entry.action.removeprefix("decision."))
            for entry in session.scalars(entries.order_by(tables.AuditEntry.id))
        ]
        looker = users.create_user(session, "looker", email="looker@example.com", name="looker")
        workspace = session.scalars(sa.select(tables.Workspace)).one()
        session.add(tables.Member(workspace_id=workspace.id, user_id=looker.id, role="viewer"))
        session.flush()
        headers = {"Authorization": f"Bearer {tokens.issue(session, looker, 'x').text}", "X-Osmosis-Workspace": "demo"}
    assert log == [("local", "running"), ("osmosis", "stopped"), ("local", "running"), ("local", "stopped")]
    ask(decider)
    assert decider.anonymous.post("/api/cli/decisions/d/stop", json={}, headers=headers).status_code == 403
    assert decider.anonymous.get(f"/decisions/{stopped['id']}", headers=headers).status_code == 200


def test_a_budget_is_that_of_all_runs_together(decider: Site) -> None:
    ask(decider, max_cost=3.11)
    for name, left in (("d--on--part1", 3.11), ("d--off--part1", 2.11)):
        decisions.advance_all(decider.platform)
        last = next(run for run in runs(decider) if run.status == "pending")
        assert last.name == name
        assert last.config["evaluation"]["max_cost"] == pytest.approx(left)
        end(decider, off=0.9, cost=0.05)
    decisions.advance_all(decider.platform)
    assert [stage["rows"] for stage in state(decider)["study"]["stages"]] == [22, 31]  # two USD were 20 rows
    assert next(run for run in runs(decider) if run.status == "pending").config["evaluation"][
        "max_cost"
    ] == pytest.approx(1.11)


def test_what_cannot_be_carried_on_is_refused(decider: Site) -> None:
    config = {"experiment_config": EXPERIMENT, "secrets": {"required": ["OWN"], "provided": {"OWN": "y"}}}
    study = {"name": "d", "questions": [{"left": "a", "right": "b"}], "arms": {"a": {}, "b": {"x": 1}}}
    body = {"study": study, "configs": dict.fromkeys("ab", config)}
    assert decider.json("POST", "decisions", json=body, expect=404)["missing"] == ["OWN"]
    body["configs"] = {"a": {"experiment_config": EXPERIMENT}}
    assert "each arm needs a config" in decider.json("POST", "decisions", json=body, expect=400)["message"]
    assert decider.json("GET", "decisions") == {"decisions": []}
    ask(decider)
    with decider.platform.db.write() as session:
        session.execute(sa.update(tables.Dataset).values(sha256="of another file"))
    decisions.advance_all(decider.platform)
    assert "has other rows than at the beginning" in state(decider)["problem"]
