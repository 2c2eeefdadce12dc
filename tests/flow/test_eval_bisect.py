"""The commit that turned rows, found between two runs in a real repository, also past one that does not even load."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import CommandRun, run_command
from support.eval_project import AGENT, write_rows
from support.git_workspace import GitWorkspace

pytestmark = pytest.mark.slow

GOOD = "def judge(solution_str, ground_truth, extra_info=None):\n    return 1.0\n"
BAD = "def judge(solution_str, ground_truth, extra_info=None):\n    return float(int(ground_truth) % 2)\n"
LINE = "eval -m bis_agent:agent -d rows.jsonl --eval-fn bis_score:judge --model offline/calculator --name"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitWorkspace:
    monkeypatch.chdir(tmp_path)
    made = GitWorkspace(tmp_path)
    made.write("bis_agent.py", AGENT)
    made.write("bis_score.py", GOOD)
    made.write(".gitignore", ".osmosis/\n.home/\n__pycache__/\n")
    write_rows(tmp_path / "rows.jsonl", 6)
    return made


def go(repo: GitWorkspace, *words: str) -> CommandRun:
    return run_command(*words, cwd=repo.root, environ={"PYTHONPATH": ""})


def history(repo: GitWorkspace, scores: list[str]) -> list[str]:
    """One commit for each text of the score file, a run `good` at the first and `bad` at the last."""
    commits = []
    for number, text in enumerate(scores):
        repo.write("bis_score.py", text + f"# {number}\n")
        commits.append(repo.commit(f"change {number}"))
        if number in (0, len(scores) - 1):
            repo_run(repo, "bad" if number else "good")
    return commits


def repo_run(repo: GitWorkspace, name: str) -> None:
    """In a process of its own: the score file is another one each time."""
    subprocess.run(
        [sys.executable, "-m", "osmosis", *LINE.split(), name, "-q"], cwd=repo.root, check=True, capture_output=True
    )


def test_the_first_bad_commit_is_found_and_kept(repo: GitWorkspace) -> None:
    commits = history(repo, [GOOD, GOOD, GOOD, BAD, BAD, BAD])
    found = go(repo, "eval", "bisect", "good", "bad", "--json")
    assert found.code == 0, found.err
    data = found.json["data"]
    assert data["rows"] == [0, 2, 4]
    assert [one["commit"] for one in data["first_bad"]] == [commits[3]]
    assert (data["good_mean"], data["bad_mean"]) == (1.0, 0.0)
    assert {one["commit"]: one["bad"] for one in data["tried"]} == {
        commits[0]: False, commits[5]: True, commits[3]: True, commits[2]: False,
    }  # fmt: skip
    assert data["chances"][0]["commit"] == commits[3]
    assert data["chances"][0]["chance"] > 0.95

    # What was tried is not run again, nothing is left behind, and the working tree is as it was.
    kept = {path: path.read_bytes() for path in repo.root.glob(".osmosis/runs/bisect-*/rollouts.jsonl")}
    assert len(kept) == 4
    again = go(repo, "eval", "bisect", "good", "bad", "--rows", "0,2,4", "--json")
    assert again.json["data"]["first_bad"] == data["first_bad"]
    assert {path: path.read_bytes() for path in kept} == kept
    assert list((repo.root / ".osmosis" / "bisect").iterdir()) == []
    assert repo.git("worktree", "list").count("\n") <= 1
    assert repo.git("status", "--porcelain") == ""


def test_a_commit_that_does_not_load_is_passed_over(repo: GitWorkspace) -> None:
    commits = history(repo, [GOOD, GOOD, "def judge(:\n", BAD, BAD])
    data = go(repo, "eval", "bisect", "good", "bad", "--json").json["data"]
    assert {one["commit"]: one["bad"] for one in data["tried"]}[commits[2]] is None
    assert [one["commit"] for one in data["first_bad"]] == [commits[2], commits[3]]


def test_rows_that_were_lost_by_chance_blame_nobody(repo: GitWorkspace) -> None:
    marker = ".osmosis/flaky"  # what no commit holds
    once = GOOD.replace("1.0", f"float(not __import__('os').path.exists({marker!r}))")
    for number in range(4):
        repo.write("bis_score.py", once + f"# {number}\n")
        repo.commit(f"change {number}")
        if number == 3:
            (repo.root / marker).touch()
        if number in (0, 3):
            repo_run(repo, "bad" if number else "good")
    refused = go(repo, "eval", "bisect", "good", "bad")
    assert refused.code == 1
    assert "measured again, these rows are not worse" in refused.err


def test_commits_of_equal_code_are_one(repo: GitWorkspace) -> None:
    history(repo, [GOOD])
    repo.write("README.md", "# words\n")
    repo.commit("docs: words")
    repo.write("bis_score.py", BAD)
    blamed = repo.commit("score: count odd ones")
    repo.write("README.md", "# more words\n")
    repo.commit("docs: more words")
    repo_run(repo, "bad")
    data = go(repo, "eval", "bisect", "good", "bad", "--json").json["data"]
    assert [one["commit"] for one in data["first_bad"]] == [blamed]
    assert data["chances"] == [{**data["first_bad"][0], "chance": 1.0}]
    assert len(data["tried"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("good", "nothing"), "there is no run 'nothing'"),
        (("bad", "good"), "no row passed in bad and fails in good"),
        (("good", "bad", "--rows", "1"), "the better one"),
        (("good", "good"), "no row passed"),
    ],
)
def test_what_cannot_be_searched_is_said(repo: GitWorkspace, words: tuple[str, ...], said: str) -> None:
    history(repo, [GOOD, BAD])
    refused = go(repo, "eval", "bisect", *words)
    assert refused.code == 1
    assert said in refused.err


def test_code_that_no_commit_describes_is_refused(repo: GitWorkspace) -> None:
    history(repo, [GOOD, BAD])
    repo.write("bis_score.py", BAD + "# not committed\n")
    repo_run(repo, "dirty")
    assert "uncommitted changes" in go(repo, "eval", "bisect", "good", "dirty").err
