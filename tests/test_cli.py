"""Where the package page of generation 0.2 has tests of the command line; more of them: tests/unit/cli, tests/flow."""

import json
from pathlib import Path

import pytest

from osmosis.cli.main import main

RUBRICS = """
version: 1
rubrics:
  - id: tone
    rubric: Be kind.
    model_info: {provider: offline, model: judge}
"""


def test_from_a_rubric_file_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rubric_configs.yaml").write_text(RUBRICS)
    row = {"conversation_id": "c1", "rubric_id": "tone", "original_input": "Hi", "solution_str": "Hello"}
    (tmp_path / "data.jsonl").write_text(json.dumps(row))
    for words in (["preview", "--path", "rubric_configs.yaml"], ["preview", "--path", "data.jsonl"]):
        assert main(words, environ={}, cwd=tmp_path) == 0
        assert "Loaded 1" in capsys.readouterr().out
    words = ["eval-rubric", "--rubric", "tone", "--data", "data.jsonl", "-n", "2", "--output", "out.json"]
    assert main(words, environ={"HOME": str(tmp_path)}, cwd=tmp_path) == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["overall_statistics"]["total_runs"] == 2
