"""What is said of a run of the platform that is over."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from osmosis.cli.eval.follow import finished_result
from osmosis.records.api.runs import EvalRunDetail
from osmosis.records.run.job import JobResult
from support.platform_data import report


@pytest.mark.parametrize("made", [JobResult.used_up, JobResult.ran_out])
def test_a_run_that_its_own_limit_ended_did_not_fail(made: object) -> None:
    result = made("budget: 900 of 800 tokens used", report())  # type: ignore[operator]
    assert result.failure is not None
    row = {"id": "1", "name": "sums-1", "status": result.status.value}
    failure = result.failure.to_dict()
    seen = EvalRunDetail.model_validate({"eval_run": row, "failure": failure, "report": report().to_dict()})
    found = finished_result("eval.wait", seen)
    assert found.exit_code == 1, "it has less than it was asked for"
    assert "it ended by its own limit, budget: 900 of 800 tokens used" in found.message
    text = io.StringIO()
    assert found.human is not None
    found.human(Console(file=text, width=200))
    assert "ended by its own limit: budget: 900" in text.getvalue()
    assert "failed, " not in text.getvalue()
    assert "try: finished rollouts are kept" in text.getvalue()
    real = {**failure, "category": "setup"}
    seen = EvalRunDetail.model_validate({"eval_run": {**row, "status": "failed"}, "failure": real})
    assert "limit" not in finished_result("eval.wait", seen).message
