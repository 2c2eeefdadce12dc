"""What jobs share through the platform: the budget of their run, the rate limits of their endpoint."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis.platform import tables
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Usage
from support.platform_data import EVALUATION

from .test_shards import a_rollout, own_rows, run_of, send, submit
from .test_workers import Box, worker_token

BEAT = {"stage": "rollouts", "completed": 1, "total": 6}


@pytest.fixture
def box(ready: Any) -> Box:
    return Box(ready, worker_token(ready), max_jobs=8)


def spent(cost: float, tokens: int, *, judge_tokens: int = 0) -> dict[str, Any]:
    """A heartbeat of a job that has spent so much."""
    report = Report(
        rows=4, attempts=2, pass_threshold=1.0, total=8, completed=1, succeeded=1, failed=0, skipped=0, coverage=0.1
    )
    report.usage.cost_usd, report.usage.prompt_tokens = cost, tokens
    report.judge_usage.prompt_tokens = judge_tokens
    return {**BEAT, "report": report.to_dict()}


def beat(box: Box, order: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    return dict(box.of_job("POST", order, "heartbeat", json=body).json())


def used_up(cost: float) -> dict[str, Any]:
    failure = Failure(phase=Phase.SETUP, category=Category.BUDGET, message=f"budget: {cost:.4f} of 5 USD spent")
    return {"status": "stopped", "failure": failure.model_dump(mode="json")}


def test_every_shard_hears_what_the_others_have_spent(box: Box) -> None:
    submit(box.site)
    first, second, third = (box.claim() for _ in range(3))
    assert beat(box, first, spent(1.5, 100))["elsewhere"] == {"cost_usd": 0.0, "tokens": 0}
    assert beat(box, second, spent(0.25, 40, judge_tokens=2))["elsewhere"] == {"cost_usd": 1.5, "tokens": 100}
    assert beat(box, third, BEAT)["elsewhere"] == {"cost_usd": 1.75, "tokens": 142}
    box.of_job("POST", second, "finish", json={"status": "finished", "report": spent(0.5, 60)["report"]})
    assert beat(box, first, spent(2.0, 200))["elsewhere"] == {"cost_usd": 0.5, "tokens": 60}, "also of one that is over"


def test_a_shard_that_is_started_again_still_counts_what_it_had_spent(box: Box) -> None:
    submit(box.site)
    first, second, _ = (box.claim() for _ in range(3))
    beat(box, first, spent(3.0, 300))
    box.round(box.word(first, alive=False, exit_code=9))
    assert beat(box, second, BEAT)["elsewhere"] == {"cost_usd": 3.0, "tokens": 300}


def test_a_budget_that_is_used_up_stops_the_run_once_and_says_so(box: Box) -> None:
    run = box.site.json(
        "POST",
        "eval-runs",
        json={
            **EVALUATION,
            "evaluation_config": {"limit": 10, "n": 2, "batch_size": 8, "max_cost": 0.5},
            "advanced_config": {"shards": 3},
        },
    )
    first, second = box.claim(), box.claim()
    made = []
    for order in (first, second):
        costs = {"usage": Usage(prompt_tokens=1, cost_usd=0.1)}
        from_shard = [a_rollout(row, 0).model_copy(update=costs) for row in own_rows(box, order)]
        made += from_shard
        send(box, order, *from_shard)
        box.of_job("POST", order, "finish", json=used_up(0.7))
    assert box.round()["start"] is None, "the third one is not begun"
    ended = run_of(box, run["id"])
    assert ended["eval_run"]["status"] == "stopped"
    assert ended["failure"]["category"] == "budget"
    assert f"budget: {len(made) * 0.1:.4f} of 0.5 USD spent" in ended["failure"]["message"]
    report = box.site.json("GET", f"eval-runs/{run['id']}/metrics")["report"]
    assert (report["completed"], report["total"]) == (len(made), 20)
    assert report["stopped"].startswith("budget:")


def test_a_job_alone_may_end_with_its_budget_and_is_not_started_again(box: Box) -> None:
    run = submit(box.site, 1)
    order = box.claim()
    box.of_job("POST", order, "finish", json=used_up(5.1))
    assert run_of(box, run["id"])["eval_run"]["status"] == "stopped"
    assert box.round()["start"] is None


def test_a_retry_of_a_used_up_budget_asks_for_a_larger_one_before_anything_starts(box: Box) -> None:
    config = {"limit": 4, "n": 2, "max_tokens_total": 100, "max_cost": 5.0}
    name = box.site.json("POST", "eval-runs", json={**EVALUATION, "evaluation_config": config})["name"]
    order = box.claim()
    send(box, order, a_rollout(0, 0))
    ended = {**used_up(0.1), "report": spent(0.5, 90, judge_tokens=20)["report"]}
    box.of_job("POST", order, "finish", json=ended)

    asks: list[dict[str, Any]] = [{}, {"max_tokens_total": 110}, {"max_tokens_total": 200, "max_cost": 0.5}]
    for asked, flag in zip(asks, ("--max-tokens-total", "--max-tokens-total", "--max-cost"), strict=True):
        refused = box.site.json("POST", f"eval-runs/{name}/retry", expect=409, json=asked)
        assert f"osmosis eval resume {name} {flag}" in refused["hint"]
        assert refused["spent"] == {"cost_usd": 0.5, "tokens": 110}
        assert box.round()["start"] is None
        assert run_of(box, name)["config"]["evaluation"]["max_tokens_total"] == 100, "a refusal changes nothing"
    for wrong in ({"max_cost": 0}, {"max_tokens_total": 0}):
        box.site.json("POST", f"eval-runs/{name}/retry", expect=400, json=wrong)

    box.site.json("POST", f"eval-runs/{name}/retry", json={"max_tokens_total": 111})
    spec = box.of_job("GET", box.claim(), "spec").json()
    assert spec["config"]["evaluation"]["max_tokens_total"] == 111
    assert spec["config"]["evaluation"]["max_cost"] == 5.0


def test_a_refusal_for_the_rate_slows_the_jobs_that_ask_the_same_endpoint(box: Box) -> None:
    submit(box.site)
    first, second, _ = (box.claim() for _ in range(3))
    other = {**EVALUATION, "advanced_config": {"base_url": "http://127.0.0.1:9/v1"}}
    box.site.json("POST", "eval-runs", json={**EVALUATION, "evaluation_config": {"limit": 1}})
    same_model, elsewhere = box.claim(), (box.site.json("POST", "eval-runs", json=other), box.claim())[1]
    assert beat(box, first, {**BEAT, "pause_s": 20.0}).get("pause_s", 0) == 0, "it knows that itself"
    assert 15 < beat(box, second, BEAT)["pause_s"] <= 20
    assert 15 < beat(box, same_model, BEAT)["pause_s"] <= 20, "another run of the workspace"
    assert beat(box, elsewhere, BEAT).get("pause_s", 0) == 0, "the same model somewhere else"
    assert 15 < beat(box, second, {**BEAT, "pause_s": 1.0})["pause_s"] <= 20
    box.of_job("POST", first, "finish", json={"status": "finished"})
    assert beat(box, second, BEAT)["pause_s"] > 15, "a job that is over had been told nevertheless"


def test_no_job_is_believed_any_pause(box: Box) -> None:
    submit(box.site)
    first, second = box.claim(), box.claim()
    beat(box, first, {**BEAT, "pause_s": 1e9})
    assert beat(box, second, BEAT)["pause_s"] <= 600
    box.of_job("POST", first, "heartbeat", 400, json={**BEAT, "pause_s": -1})


def test_another_workspace_is_not_slowed(box: Box) -> None:
    submit(box.site)
    order = box.claim()
    beat(box, order, {**BEAT, "pause_s": 20.0})
    with box.site.platform.db.write() as session:
        run = session.get_one(tables.Run, order["run_id"])
        other = tables.Workspace(id=tables.new_id(), name="other")
        session.add(other)
        session.flush()
        session.get_one(tables.Job, order["job_id"]).workspace_id = run.workspace_id = other.id
    submit(box.site)
    assert beat(box, box.claim(), BEAT).get("pause_s", 0) == 0
