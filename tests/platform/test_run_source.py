"""A run of the database as the viewer is shown it. What its pages look like is in tests/flow/test_web.py."""

from __future__ import annotations

from typing import Any

from osmosis.platform import tables
from osmosis.platform.run_source import build_state, row_ranges
from osmosis.records.base import utc_now
from support.platform_data import report


def run(**more: Any) -> tables.Run:
    known: dict[str, Any] = {
        "kind": "eval",
        "status": "running",
        "config": {"evaluation": {"n": 3, "pass_threshold": 0.5}},
        "sampled_rows": 10,
        "created_at": utc_now(),
    }
    return tables.Run(**{**known, "id": "r1", "name": "x", "model_path": "openai/x", "rollout": "m", **more})


def test_before_the_first_report_the_total_comes_from_the_config() -> None:
    state = build_state(run(progress={"stage": "environment", "completed": 0, "total": 0}), None, 0)
    assert (state.total, state.share, state.pass_threshold) == (30, 0.0, 0.5)
    assert dict(state.stages)["environment"] == "now"
    assert dict(state.stages)["checkout"] == "done"
    assert "training" not in dict(state.stages)


def test_a_report_says_how_many_there_should_be() -> None:
    state = build_state(run(status="finished"), report(rows=20), 30)
    assert (state.completed, state.total, state.pass_threshold, state.over) == (30, 60, 1.0, True)
    assert {now for _, now in state.stages} == {"done"}


def test_rollouts_in_flight_are_those_of_a_run_that_runs() -> None:
    progress = {"stage": "rollouts", "completed": 3, "total": 30, "in_flight": {"agent": 2, "grading": 1}}
    assert build_state(run(progress=progress), None, 3).in_flight == {"agent": 2, "grading": 1}
    assert build_state(run(progress=progress, status="stopped"), None, 3).in_flight == {}


def test_row_ranges() -> None:
    assert row_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert row_ranges(list(range(0, 400, 2))).endswith("… (200 rows)")
