"""The files that the package page of generation 0.2 names stand where it says, and run."""

import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["examples/reward_functions.py"], ""),
        (["examples/rubric_functions.py"], ""),  # every provider is commented out, as the page says
        (["-m", "osmosis", "preview", "--path", "examples/rubric_configs.yaml"], "Loaded 2 rubric config(s)"),
        (["-m", "osmosis", "preview", "--path", "examples/sample_data.jsonl"], "JSONL record(s)"),
    ],
)
def test_the_examples_of_the_package_page_run_as_it_says(tmp_path: Path, words: list[str], expected: str) -> None:
    environ = {"PYTHONPATH": str(TOP), "HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run([sys.executable, *words], cwd=TOP, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


@pytest.mark.parametrize("page", ["README.md", "architecture.md"])
def test_the_pages_about_remote_rollouts_are_there(page: str) -> None:
    assert (TOP / "docs" / "rollout" / page).read_text().startswith("# ")
