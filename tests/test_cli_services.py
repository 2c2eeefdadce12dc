"""Where that page has tests of the parts of `eval-rubric`; more of them: tests/unit/engine."""

import json
from pathlib import Path

import pytest

from osmosis_ai.cli_services import CLIError, RubricEvaluator, load_rubric_suite
from osmosis_ai.cli_services.dataset import RubricRecord, load_rubric_records

TOP = Path(__file__).parents[1]


def test_records_are_parsed_and_one_without_a_solution_is_refused(tmp_path: Path) -> None:
    records = load_rubric_records(TOP / "examples" / "sample_data.jsonl", "support_followup")
    assert records[0].conversation_id == "ticket-001"
    assert {record.rubric_id for record in records} == {"support_followup"}
    (tmp_path / "data.jsonl").write_text(json.dumps({"rubric_id": "support_followup", "solution_str": " "}))
    with pytest.raises(CLIError, match="solution_str"):
        load_rubric_records(tmp_path / "data.jsonl", "support_followup")


def test_a_rubric_function_gets_everything_in_extra_info() -> None:
    seen: dict[str, object] = {}

    def score(solution_str: str, ground_truth: str | None, extra_info: dict) -> float:
        seen.update(extra_info)
        return 0.5

    config = load_rubric_suite(TOP / "examples" / "rubric_configs.yaml").get("support_followup")
    record = RubricRecord(1, 1, {}, "Thanks", original_input="Where is it?", extra_info={"tier": 2})
    assert RubricEvaluator(score).run(config, record)["score"] == 0.5
    assert {"provider", "model", "rubric", "score_min", "score_max", "original_input"} <= set(seen)
