"""`osmosis reward test` as it is typed."""

import json
from pathlib import Path

import pytest

from support.command_line import CommandRun, run_command

REWARDS = """
def exact(solution_str, ground_truth, extra_info=None):
    return float(solution_str.strip() == ground_truth)

def generous(solution_str, ground_truth, extra_info=None):
    return {"found": float(ground_truth in solution_str), "said": 1.0}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"user_prompt": f"{i} + {i}?", "ground_truth": str(2 * i)} for i in range(10, 90)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards_of_a_test.py").write_text(REWARDS)
    return tmp_path


def tried(folder: Path, reward: str, *words: str) -> CommandRun:
    return run_command("reward", "test", f"rewards_of_a_test:{reward}", *words, cwd=folder)


def test_exit_codes_and_json(folder: Path) -> None:
    good = tried(folder, "exact", "-d", "rows.jsonl", "--json")
    assert good.code == 0
    (score,) = json.loads(good.out)["data"]["scores"]
    assert (score["rows"], score["free"], score["findings"]) == (50, False, [])

    bad = tried(folder, "generous", "-d", "rows.jsonl", "--limit", "10", "--json")
    assert bad.code == 1
    found, said = (one["findings"] for one in json.loads(bad.out)["data"]["scores"])
    assert "many truths at once earns 100% of the reward" in found[-1]["what"]
    assert said[0]["what"] == "the ground truth earns no more than a worthless answer: 1"

    one = tried(folder, "generous", "-d", "rows.jsonl", "--json", "--score", "found")
    assert [score["score"] for score in json.loads(one.out)["data"]["scores"]] == ["rewards_of_a_test:generous.found"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "-d/--dataset"),
        (("-d", "rows.jsonl", "--form", "so"), 2, "does not hold {answer}"),
        (("-d", "gone.jsonl"), 1, "no such dataset"),
        (("-d", "rows.jsonl", "--score", "nope"), 2, "there is no score 'nope'"),
        (("-d", "rows.jsonl", "--limit", "1"), 2, "--limit"),
    ],
)
def test_what_is_wrong_is_said(folder: Path, words: tuple[str, ...], code: int, said: str) -> None:
    found = tried(folder, "exact", *words)
    assert (found.code, said in found.err) == (code, True), found.err
