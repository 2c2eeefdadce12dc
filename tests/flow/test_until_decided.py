"""Two runs that are extended until their difference is decided: other commits, interruptions, budgets."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis.engine.journal import Journal
from osmosis.records.run.history import Decision
from support.command_line import CommandRun, run_command
from support.eval_project import AGENT, write_rows
from support.git_workspace import GitWorkspace
from support.waiting import until

pytestmark = pytest.mark.slow

SCORE = """
def judge(solution_str, ground_truth, extra_info=None):
    return float(int(ground_truth) % 10 < {share})
"""
LINE = "eval -m until_agent:agent -d rows.jsonl --eval-fn until_score:judge --model offline/calculator -q --name"
COMPARE = ("eval", "compare", "a", "b", "--until-decided")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitWorkspace:
    monkeypatch.chdir(tmp_path)
    made = GitWorkspace(tmp_path)
    made.write("until_agent.py", AGENT)
    made.write(".gitignore", ".osmosis/\n.home/\n__pycache__/\n")
    write_rows(tmp_path / "rows.jsonl", 60)
    return made


def go(repo: GitWorkspace, *words: str) -> CommandRun:
    return run_command(*words, cwd=repo.root, environ={"PYTHONPATH": ""})


def make(repo: GitWorkspace, name: str, share: int, *more: str) -> Journal:
    """A run of the code in which this many of ten rows pass, committed."""
    repo.write("until_score.py", SCORE.format(share=share) + f"# {name}\n")
    repo.commit(f"score of {name}")
    command = [sys.executable, "-m", "osmosis", *LINE.split(), name, *more]
    subprocess.run(command, cwd=repo.root, check=True, capture_output=True)
    return Journal(repo.root / ".osmosis" / "runs" / name)


def decision(journal: Journal) -> Decision:
    return Decision.model_validate_json((journal.folder / "decision-a.json").read_bytes())


def places(journal: Journal) -> list[tuple[int, int]]:
    return sorted((line["row_index"], line["attempt"]) for line in journal.lines())


def test_each_run_goes_on_with_the_code_that_made_it_until_it_is_decided(repo: GitWorkspace) -> None:
    a, b = make(repo, "a", 2, "--limit", "10"), make(repo, "b", 8, "--limit", "10")
    made = a.run()
    done = go(repo, *COMPARE, "--max-rollouts", "100", "--yes", "--json")
    assert done.code == 0, done.err
    data = done.json["data"]
    assert (data["verdict"], data["decision"]["verdict"]) == ("better", "better")
    assert data["mean_a"] == pytest.approx(0.2, abs=0.05)
    assert data["mean_b"] == pytest.approx(0.8, abs=0.05)
    looks = decision(b).looks
    assert [look.limit for look in looks] == [None, 22, 35, 47, 60]
    made_looks = [look for look in looks if look.done]
    assert len(made_looks) < len(looks)  # clear before the end: the rest is saved
    last = made_looks[-1]
    assert data["difference_ci"][0] > 0
    assert last.p_value < last.level < 0.05
    assert places(a) == places(b) == [(row, 0) for row in range(last.rollouts)]

    # Run A is as it was, but for what was asked of it; no worktree is left.
    assert a.run()["local"] == made["local"]
    assert a.plan().dataset == "rows.jsonl"
    assert "before_extension" not in a.run()
    assert list((repo.root / ".osmosis" / "bisect").iterdir()) == []
    assert repo.git("status", "--porcelain") == ""
    assert go(repo, "eval", "report", "a").code == 0


def test_attempts_come_when_all_rows_are_there_and_the_budget_ends_it(repo: GitWorkspace) -> None:
    a, b = make(repo, "a", 5), make(repo, "b", 5)
    done = go(repo, *COMPARE, "--max-rollouts", "300", "--yes")
    assert done.code == 0, done.err
    assert "undecided after 180 rollouts each" in done.out
    assert "look 3 of 3" in done.err
    assert [(look.rollouts, look.attempts) for look in decision(b).looks] == [(60, 1), (120, 2), (180, 3)]
    assert len(places(a)) == len(places(b)) == 180

    # It is over: nothing more is run, and another budget is another test.
    again = go(repo, *COMPARE, "--yes", "--json")
    assert (again.code, again.json["data"]["decision"]["looks"][-1]["done"]) == (0, True)
    assert len(places(a)) == 180
    refused = go(repo, *COMPARE, "--max-rollouts", "900", "--yes")
    assert refused.code == 2
    assert "its error rate holds for that alone" in refused.err


def test_an_interrupted_test_goes_on_where_it_was(repo: GitWorkspace) -> None:
    repo.write("until_agent.py", AGENT.replace("messages =", "import asyncio; await asyncio.sleep(0.1); messages =", 1))
    a, b = make(repo, "a", 5, "--limit", "6"), make(repo, "b", 5, "--limit", "6")
    command = [sys.executable, "-m", "osmosis", *COMPARE, "--yes"]
    running = subprocess.Popen([*command, "--max-rollouts", "108"], cwd=repo.root, stderr=subprocess.PIPE)
    asyncio.run(until(lambda: len(places(a)) > 8, within=60))
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    stored = places(a)
    assert 8 < len(stored) < 60
    assert a.run()["local"]["base_dir"] == str(repo.root)

    finished = subprocess.run(command, cwd=repo.root, capture_output=True, check=False, text=True)
    assert finished.returncode == 0, finished.stderr
    assert places(a) == places(b) == [(row, 0) for row in range(60)]
    lines = [json.loads(line)["rollout_id"] for line in a.rollouts_path.read_text().splitlines()]
    assert len(lines) == len(set(lines)) == 60  # none was run twice


def test_code_that_no_commit_describes_is_not_mixed(repo: GitWorkspace) -> None:
    repo.commit("agent")
    repo.write("until_score.py", SCORE.format(share=3))
    command = [sys.executable, "-m", "osmosis", *LINE.split(), "a", "--limit", "10"]
    subprocess.run(command, cwd=repo.root, check=True, capture_output=True)
    b = make(repo, "b", 5, "--limit", "10")
    refused = go(repo, *COMPARE, "--max-rollouts", "100", "--yes")
    assert refused.code == 1
    assert "inputs of run a have changed" in refused.err
    assert "uncommitted changes" in refused.err
    assert len(places(b)) == 10


REFUSED = {
    ("--until-decided",): "needs a budget",
    ("--until-decided", "--max-rollouts", "3"): "do not reach the next look, which takes 20",
    ("--until-decided", "--max-rollouts", "100"): "there is no terminal to ask on",
    ("--until-decided", "--max-cost", "1"): "what a rollout of these runs costs is unknown",
    ("--until-decided", "--max-cost", "0"): "--max-cost must be greater than 0",
    ("--max-rollouts", "3"): "--max-rollouts needs --until-decided",
}


def test_what_cannot_be_decided_is_said_and_spends_nothing(repo: GitWorkspace) -> None:
    a = make(repo, "a", 5, "--rows", "0-9")
    b = make(repo, "b", 5, "--rows", "0-9")
    for words, said in REFUSED.items():
        refused = go(repo, "eval", "compare", "a", "b", *words)
        assert refused.code in (1, 2)
        assert said in " ".join(refused.err.split())
    assert len(places(a)) == 10
    assert not (b.folder / "decision-a.json").exists()  # an answer that was not given binds to no budget
