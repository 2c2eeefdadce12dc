"""One run over many jobs: each has its rows, its lease and its part of the concurrency; the report is one job's."""

from __future__ import annotations

import random
from typing import Any

import pytest
import sqlalchemy as sa

from osmosis.metrics.summary import summarize, together
from osmosis.platform import tables
from osmosis.platform.scheduling import leases
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import JobResult
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.rows import Shard, count_shards, share_concurrency
from support.platform_data import EVALUATION

from .test_workers import Box, logs_of, worker_token


def submit(site: Any, shards: int | str = 3, *, rows: int = 10, n: int = 2, batch_size: int = 8) -> dict[str, Any]:
    wanted = {"limit": rows, "n": n, "batch_size": batch_size}
    return dict(
        site.json(
            "POST", "eval-runs", json={**EVALUATION, "evaluation_config": wanted, "advanced_config": {"shards": shards}}
        )
    )


@pytest.fixture
def box(ready: Any) -> Box:
    return Box(ready, worker_token(ready), max_jobs=8)


def a_rollout(row: int, attempt: int, seed: int = 0) -> Rollout:
    """As jobs send them: some fail, some are not scored, all take their time and tokens."""
    chance = random.Random(f"{row} {attempt} {seed}")
    failed = chance.random() < 0.2
    failure = Failure(phase=Phase.AGENT, category=Category.AGENT_ERROR, message=f"boom {row}") if failed else None
    return Rollout(
        rollout_id=f"{row}-{attempt}",
        row_index=row,
        row_key=f"key {row}",
        attempt=attempt,
        status=RolloutStatus.FAILED if failed else RolloutStatus.SUCCESS,
        failure=failure,
        scores={} if failed else {"reward": Score(name="reward", value=chance.random())},
        usage=Usage(prompt_tokens=chance.randrange(1000), completion_tokens=7, cost_usd=chance.random()),
        duration_ms=chance.random() * 1000,
    )


def send(box: Box, order: dict[str, Any], *rollouts: Rollout) -> None:
    box.of_job("POST", order, "rollouts", json={"rollouts": [one.model_dump(mode="json") for one in rollouts]})


def work(box: Box, order: dict[str, Any], rows: list[int], attempts: int = 2) -> list[Rollout]:
    made = [a_rollout(row, attempt) for row in rows for attempt in range(attempts)]
    send(box, order, *made)
    return made


def own_rows(box: Box, order: dict[str, Any]) -> list[int]:
    spec = box.of_job("GET", order, "spec").json()
    return Shard.model_validate(spec["shard"]).of(spec["rows"])


def run_of(box: Box, run_id: str) -> dict[str, Any]:
    return dict(box.site.json("GET", f"eval-runs/{run_id}"))


def progress_of(box: Box, run_id: str) -> Any:
    return box.site.row(tables.Run, run_id).progress


def plan_of(box: Box, run_id: str) -> EvalPlan:
    stored = box.site.row(tables.Run, run_id).config
    return EvalPlan.from_config(EvalConfig.model_validate(stored), name="x", dataset="sums")


@pytest.mark.parametrize(("rows", "count"), [(10, 3), (4, 4), (7, 1), (100, 7), (3, 5)])
def test_every_row_is_in_one_shard(rows: int, count: int) -> None:
    selected = [row * 3 for row in range(rows)]
    parts = [Shard(number=number, count=count).of(selected) for number in range(count)]
    assert [row for part in parts for row in part] == selected
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(("concurrency", "count"), [(8, 3), (3, 3), (100, 7), (1, 1)])
def test_the_endpoint_sees_the_concurrency_of_the_config_in_all(concurrency: int, count: int) -> None:
    assert sum(share_concurrency(concurrency, place, count) for place in range(count)) == concurrency


def test_there_are_never_more_shards_than_rows_or_rollouts_in_flight() -> None:
    assert [count_shards(9, rows=4, concurrency=8, room=1), count_shards(9, rows=40, concurrency=2, room=1)] == [4, 2]
    assert [
        count_shards("auto", rows=40, concurrency=8, room=6),
        count_shards("auto", rows=4, concurrency=1, room=0),
    ] == [6, 1]


def test_a_run_is_cut_into_jobs_and_its_report_is_that_of_one(box: Box) -> None:
    run = submit(box.site)
    orders = [box.claim() for _ in range(3)]
    assert len({order["lease"] for order in orders}) == len({order["folder"] for order in orders}) == 3
    assert box.round()["start"] is None
    made = []
    for order in orders:
        rows = own_rows(box, order)
        head, *lines = box.of_job("GET", order, "dataset").text.splitlines()
        assert [f'"index": {row},' in line for row, line in zip(rows, lines, strict=True)] == [True] * len(rows)
        assert f'"rows": {len(rows)},' in head
        made += work(box, order, rows)
    for order in orders:
        box.of_job("POST", order, "finish", json={"status": "finished"})
    ended = run_of(box, run["id"])
    assert ended["eval_run"]["status"] == "finished"
    plan = plan_of(box, run["id"])
    random.Random(1).shuffle(made)
    one = summarize(made, plan, rows=10)
    report = Report.model_validate(box.site.json("GET", f"eval-runs/{run['id']}/metrics")["report"])
    same = {"duration_ms": 0.0, "dataset_rows": None}
    assert report.model_copy(update=same) == one.model_copy(update=same)
    assert report.scores[0].pass_rate_interval is not None
    assert report.latency_ms is not None


def test_a_lost_shard_goes_elsewhere_with_what_it_had_stored(box: Box) -> None:
    run = submit(box.site)
    orders = [box.claim() for _ in range(3)]
    rows = own_rows(box, orders[1])
    send(box, orders[0], a_rollout(0, 0))
    send(box, orders[1], a_rollout(rows[0], 0))
    box.round(box.word(orders[1], alive=False, exit_code=9))
    other = Box(box.site, worker_token(box.site), name="other")
    again = other.claim()
    assert own_rows(other, again) == rows
    assert other.of_job("GET", again, "rollouts").json() == {"keys": [[0, f"key {rows[0]}", 0]]}, "of its own rows"
    bodies = other.of_job("GET", again, "rollouts?bodies=true").text.splitlines()
    assert [Rollout.model_validate_json(line).row_index for line in bodies] == [rows[0]]
    assert box.round(box.word(orders[0]), box.word(orders[2]))["end"] == [], "the others go on"
    assert "shard 2: restarting (start 2)" in logs_of(box.site, run["id"])


def test_progress_figures_and_concurrency_are_those_of_all_shards(box: Box) -> None:
    run = submit(box.site)
    orders = [box.claim() for _ in range(3)]
    plan = plan_of(box, run["id"])
    given = []
    for order in orders:
        rows = own_rows(box, order)
        figures = summarize(work(box, order, rows), plan, rows=len(rows))
        counts = {"completed": 2 * len(rows), "total": 2 * len(rows), "in_flight": {"agent": 2, "grading": 1}}
        beat = {"stage": "rollouts", **counts, "report": figures.to_dict()}
        given.append(box.of_job("POST", order, "heartbeat", json=beat).json()["concurrency"])
    assert sorted(given) == [2, 3, 3]
    shown = run_of(box, run["id"])
    assert (shown["eval_run"]["progress"]["completed"], shown["eval_run"]["progress"]["total"]) == (20, 20)
    assert shown["results"]["total_runs"] == 20
    assert progress_of(box, run["id"])["in_flight"] == {"agent": 6, "grading": 3}
    box.of_job("POST", orders[0], "finish", json={"status": "finished"})
    assert progress_of(box, run["id"])["in_flight"] == {"agent": 4, "grading": 2}
    beat = {"stage": "rollouts", "completed": 1, "total": 6}
    assert box.of_job("POST", orders[1], "heartbeat", json=beat).json()["concurrency"] == 4, "what the first one left"


def test_one_stop_stops_all_and_keeps_what_is_there(box: Box) -> None:
    run = submit(box.site)
    orders = [box.claim() for _ in range(2)]
    send(box, orders[0], a_rollout(0, 0))
    box.site.json("POST", f"eval-runs/{run['id']}/stop", json={})
    for order in orders:
        assert box.of_job("POST", order, "heartbeat", json={"stage": "rollouts"}).json()["stop"] is True
        box.of_job("POST", order, "finish", json={"status": "stopped"})
    ended = run_of(box, run["id"])
    assert ended["eval_run"]["status"] == "stopped"
    assert ended["results"]["total_runs"] == 1
    assert box.round()["start"] is None


def test_a_shard_that_fails_ends_the_run(box: Box) -> None:
    run = submit(box.site)
    orders = [box.claim() for _ in range(2)]
    failure = Failure(phase=Phase.SETUP, category=Category.AUTH, message="no key").model_dump(mode="json")
    box.of_job("POST", orders[0], "finish", json={"status": "failed", "failure": failure})
    assert run_of(box, run["id"])["eval_run"]["status"] == "failed"
    box.of_job("POST", orders[1], "heartbeat", 409, json={"stage": "rollouts"})


def test_a_shard_that_runs_out_of_time_leaves_the_others_theirs(box: Box) -> None:
    """`wall_s` is what each job needs: it ends one of them with what that has, and the run says how many."""
    wanted = {"evaluation_config": {"limit": 10, "n": 2, "batch_size": 8}}
    advanced = {"advanced_config": {"shards": 3, "resources": {"wall_s": 60}}}
    run = box.site.json("POST", "eval-runs", json={**EVALUATION, **wanted, **advanced})
    plan = plan_of(box, run["id"])
    first, second = box.claim(), box.claim()
    rows = own_rows(box, first)
    made = work(box, first, rows[:1])
    said = plan.timeouts.ran_out()
    assert said is not None
    report = summarize(made, plan, rows=len(rows)).model_copy(update={"stopped": said})
    late = JobResult.ran_out(said, report).model_dump(mode="json")
    box.of_job("POST", first, "finish", json=late)
    assert run_of(box, run["id"])["eval_run"]["status"] == "running"
    assert "shard 1 of 3: time limit" in logs_of(box.site, run["id"])

    third = box.claim()
    for order in (second, third):
        made += work(box, order, own_rows(box, order))
        box.of_job("POST", order, "finish", json={"status": "finished"})
    ended = run_of(box, run["id"])
    assert ended["eval_run"]["status"] == "stopped"
    assert ended["failure"]["category"] == "timeout"
    assert ended["failure"]["message"] == "time limit: 1 of 3 jobs did not finish within 60 s"
    assert "retry the run for the rest" in ended["failure"]["fix"]
    stored = box.site.json("GET", f"eval-runs/{run['id']}/metrics")["report"]
    assert (stored["completed"], stored["total"]) == (len(made), 20)
    assert stored["stopped"] == ended["failure"]["message"]
    box.site.json("POST", f"eval-runs/{run['id']}/retry", json={})


def test_a_report_that_was_not_made_is_made_later(box: Box) -> None:
    """The platform was killed between the last message of a shard and the report."""
    run = submit(box.site)
    for order in [box.claim() for _ in range(3)]:
        work(box, order, own_rows(box, order))
    with box.site.platform.db.write() as session:
        session.execute(sa.update(tables.Job).values(state="over", status="finished"))
    leases.reap(box.site.platform)
    assert run_of(box, run["id"])["eval_run"]["status"] == "finished"
    assert run_of(box, run["id"])["results"]["total_runs"] == 20


def test_auto_is_as_many_as_there_is_room_for(box: Box) -> None:
    Box(box.site, worker_token(box.site), name="other", max_jobs=2)
    submit(box.site, "auto", rows=40, batch_size=32)
    assert box.site.stored(sa.select(tables.Job.shards)) == [10] * 10


def test_figures_of_shards_together_are_those_of_their_rollouts() -> None:
    body = {"experiment": {"rollout": "r", "entrypoint": "main.py", "model_path": "offline/x", "dataset": "d"}}
    plan = EvalPlan.from_config(EvalConfig.model_validate({**body, "secrets": {"required": []}}), name="x", dataset="d")
    made = [a_rollout(row, 0, seed=3) for row in range(50)]
    parts = [summarize(made[:7], plan), summarize(made[7:30], plan), summarize(made[30:], plan)]
    shown, exact = together(parts, rows=60), summarize(made, plan, rows=60)
    assert (shown.completed, shown.failed, shown.total) == (exact.completed, exact.failed, exact.total)
    assert shown.usage.total_tokens == exact.usage.total_tokens
    one, other = shown.scores[0], exact.scores[0]
    assert (one.passed, one.scored, one.failed) == (other.passed, other.scored, other.failed)
    assert one.mean == pytest.approx(other.mean)
    assert one.mean_scored == pytest.approx(other.mean_scored)
    assert one.pass_rate == pytest.approx(other.pass_rate)
