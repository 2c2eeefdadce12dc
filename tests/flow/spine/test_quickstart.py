"""From an empty folder to a scored run, by the one command and by what it leaves behind."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Person

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_quickstart_ends_with_a_pass_rate_that_terminal_page_and_data_agree_on(person: Person) -> None:
    printed = person.types("quickstart", "--yes", "--dir", str(person.demo))
    for command in (
        "osmosis platform start",
        "osmosis login",
        "osmosis init demo",
        "osmosis rollout new multiply --template multiply",
        "osmosis dataset upload data/multiply.jsonl",
        "git push",
        "osmosis eval submit configs/eval/multiply.toml --limit 20 --n 3 --yes --wait",
    ):
        assert f"$ {command}" in printed
    assert "stand-in" in printed
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    figures = re.findall(r"^(?:mean|pass rate|pass@3) .*$", readme, re.MULTILINE)
    assert len(figures) == 3
    for line in figures:
        assert line in printed, "README.md shows other figures than a fresh run"

    info = person.asks("eval", "info", "multiply-1")["data"]
    results = info["results"]
    assert 0 < results["pass_rate"] < 1
    assert results["graded"] == results["total_runs"] == 60
    assert set(results["reward_stats"]["pass_at_k"]) == {"1", "3"}
    assert f"{results['reward_stats']['mean']:.4f}" in printed

    status, page = person.fetch(info["eval_run"]["platform_url"])
    assert status == 200
    assert f"{100 * results['pass_rate']:.1f}" in page
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=person.workspace, capture_output=True, text=True, check=True
    )
    assert info["eval_run"].get("commit_sha", info.get("commit_sha")) == head.stdout.strip()

    again = person.types("quickstart", "--yes", "--dir", str(person.demo))
    assert "same workspace" in again
    assert [run["name"] for run in person.asks("eval", "list")["items"]] == ["multiply-2", "multiply-1"]


def test_the_stand_in_is_only_a_default(person: Person, endpoint: Callable[..., str]) -> None:
    url = endpoint()
    person.types("quickstart", "--yes", "--dir", str(person.demo), "--base-url", url, "--model", "house-model")
    info = person.asks("eval", "info", "multiply-1")["data"]
    assert 0 < info["results"]["pass_rate"] < 1
    assert info["config"]["model_path"] == "house-model"
    assert info["results"]["total_tokens"] > 0
