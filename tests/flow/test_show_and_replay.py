"""One rollout of a run, shown and run again: what was said, what failed, and where a changed agent parts from it."""

import io
import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from osmosis.cli.eval.show import draw_rollout
from osmosis.engine.journal import Journal
from osmosis.records.run.rollout import Rollout
from support.command_line import CommandRun, run_command
from support.eval_project import ROLLOUT, write_rows
from support.git_workspace import GitWorkspace
from support.terminal import run_in_terminal

AGENT = """
import pathlib
from osmosis import RolloutAgentLoop

class Chat(RolloutAgentLoop):
    name = "chat"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        if pathlib.Path("hint").exists():
            messages.append({"role": "user", "content": "think first"})
        messages.append((await ctx.chat(messages)).message)
        secret_of_this_frame = len(messages)
        if messages[0]["content"].startswith("What is 3"):
            raise LookupError(f"no idea after {secret_of_this_frame} messages")
        return ctx.complete(messages)

agent = Chat()
"""
SCORE = """
def judge(solution_str, ground_truth, extra_info=None):
    if ground_truth == "56":
        raise ValueError("cannot judge this one")
    return float(solution_str.endswith(f"#### {ground_truth}"))
"""
ROWS = [(2, 5, 10), (3, 4, 12), (7, 8, 56)]
LINE = (
    "eval -m shown_agent:agent -d rows.jsonl --eval-fn shown_score:judge --model offline/calculator --n 2 --name night"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shown_agent.py").write_text(AGENT)
    (tmp_path / "shown_score.py").write_text(SCORE)
    rows = [{"user_prompt": f"What is {a} * {b}?", "ground_truth": str(c)} for a, b, c in ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ended = go(tmp_path, LINE)
    assert "night" in ended.out + ended.err
    return tmp_path


def drawn(rollout: Rollout, expected: str | None = None) -> str:
    console = Console(file=io.StringIO(), width=200)
    draw_rollout(console, rollout, expected=expected)
    return console.file.getvalue()


def go(folder: Path, line: str) -> CommandRun:
    return run_command(*line.split(), cwd=folder)


def data(run: CommandRun) -> dict[str, object]:
    return json.loads(run.out)["data"]


def test_the_list_has_what_failed_first(project: Path) -> None:
    rows = json.loads(go(project, "eval show night --json").out)["items"]
    assert [(row["place"], row["failure"]) for row in rows] == [
        ("1/0", "agent_error"),
        ("1/1", "agent_error"),
        ("2/0", "score_error"),
        ("2/1", "score_error"),
        ("0/0", None),
        ("0/1", None),
    ]


def test_wrong_answers_come_with_question_expected_answer_and_reason(project: Path) -> None:
    (project / "shown_score.py").write_text(
        "from osmosis import Score\ndef judge(solution_str, ground_truth, extra_info=None):\n"
        "    return Score(float(ground_truth != '10'), 'not ten' if ground_truth == '10' else 'fine')\n"
    )
    sys.modules.pop("shown_score", None)
    go(project, "eval regrade night -q")
    wrong = json.loads(go(project, "eval show night --outcome wrong --json").out)
    assert [(row["place"], row["outcome"], row["score"]) for row in wrong["items"]] == [
        ("0/0", "wrong", 0.0),
        ("0/1", "wrong", 0.0),
    ]
    row = wrong["items"][0]
    assert (row["prompt"], row["expected"], row["reason"]) == ("What is 2 * 5?", "10", "not ten")
    assert row["answer"]
    assert [row["place"] for row in json.loads(go(project, "eval show night --below 0.5 --json").out)["items"]] == [
        "0/0",
        "0/1",
    ]
    listed = go(project, "eval show night --limit 1").out
    assert "1 of 6; more: --limit 6" in listed
    assert "outcome" in listed.lower()


def test_the_list_without_a_platform_is_of_this_machine_by_tag_too(project: Path) -> None:
    assert go(project, "eval edit night --tag weekly --json").code == 0
    assert [row["name"] for row in json.loads(go(project, "eval list --tag weekly --json").out)["items"]] == ["night"]
    assert json.loads(go(project, "eval list --local --tag other --json").out)["items"] == []
    (project / "elsewhere").mkdir()
    assert "no runs on this machine; not logged in" in go(project / "elsewhere", "eval list").err


LEAVES_FILES = """
from osmosis import AgentWorkflow, Grader

class Leaves(AgentWorkflow):
    async def run(self, ctx):
        (ctx.artifacts_dir / "note.txt").write_text("left")
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]

class Half(Grader):
    async def grade(self, ctx):
        ctx.set_reward(0.5, parts={"form": 1.0, "sense": 0.0})
"""


def test_files_of_a_rollout_stand_in_its_run_and_parts_have_means(project: Path) -> None:
    (project / "leaves_files.py").write_text(LEAVES_FILES)
    go(project, "eval -m leaves_files:Leaves -d rows.jsonl --model offline/echo --name files -q")
    folder = Path(str(data(go(project, "eval show files 1 --json"))["artifacts"]))
    assert (folder / "note.txt").read_text() == "left"
    assert folder.is_relative_to(project / ".osmosis/runs/files")
    assert "parts of reward on average: form 1, sense 0" in go(project, "eval show files").out


def test_one_rollout_with_row_traceback_and_reason(project: Path) -> None:
    failed = data(go(project, "eval show night 1 --json"))
    assert failed["row"] == {"user_prompt": "What is 3 * 4?", "ground_truth": "12"}
    assert "LookupError: no idea after 2 messages" in failed["rollout"]["failure"]["traceback"]
    assert data(go(project, "eval show latest 0/1 --json"))["rollout"]["attempt"] == 1
    assert data(go(project, "eval show nig 2 --json"))["rollout"]["scores"]["shown_score:judge"]["failure"]

    # The dataset may have changed since: another row is not shown as the one that was run.
    (project / "rows.jsonl").write_text('{"user_prompt": "else", "ground_truth": "1"}\n' * 3)
    assert data(go(project, "eval show night 1 --json"))["row"] is None


def test_what_is_drawn_for_people(project: Path) -> None:
    rollouts = {one.place: one for one in Journal(project / ".osmosis/runs/night").rollouts()}
    text = drawn(rollouts[1, 0], expected="12")
    for said in ("What is 3 * 4?", "expected  12", "failed, agent error: LookupError", 'raise LookupError(f"no idea'):
        assert said in text
    assert "osmosis/sdk" not in text, "the traceback begins with a line of the agent's"
    calls = [{"id": "call_1", "function": {"name": "find", "arguments": "{}"}}]
    talk = [{"role": "assistant", "tool_calls": calls}, {"role": "tool", "tool_call_id": "call_1", "content": "a map"}]
    assert "tool find" in drawn(rollouts[0, 0].model_copy(update={"messages": talk}))
    judged = drawn(rollouts[2, 0])
    assert "shown_score:judge  failed" in judged
    assert "ValueError: cannot judge this one" in judged


def test_what_is_wrong_is_said(project: Path) -> None:
    for line, code, said in (
        ("eval show night 7", 1, "no rollout 7/0"),
        ("eval show night one", 2, "ROW or ROW/ATTEMPT"),
        ("eval show other 1", 1, "existing: night"),
        ("rollout replay night 0/9", 1, "no rollout 0/9"),
        ("rollout replay night 0 --pdb --json", 1, "needs a terminal"),
    ):
        run = go(project, line)
        assert (run.code, said in run.err) == (code, True), f"{line}: {run.err}"


def test_a_beginning_that_two_runs_have_is_refused(project: Path) -> None:
    for name in ("nightly-2", "nightly-3"):
        go(project, LINE.replace("--name night", f"--name {name}"))
    run = go(project, "eval show nightly 0")
    assert (run.code, "could be nightly-2, nightly-3" in run.err) == (2, True)
    assert data(go(project, "eval show nightly-2 0 --json"))["run"] == "nightly-2"


def test_a_replay_is_the_same_and_calls_no_model(project: Path) -> None:
    same = go(project, "rollout replay night 0 --json")
    assert same.code == 0
    found = data(same)
    assert (found["same"], found["parts_at"], found["rollout"]["scores"]["shown_score:judge"]["value"]) == (
        True,
        None,
        found["recorded_scores"]["shown_score:judge"],
    )
    assert found["rollout"]["calls"][0]["cached"] is True


def test_a_failure_is_raised_again_and_a_changed_agent_parts(project: Path) -> None:
    again = go(project, "rollout replay night 1/1 --json")
    assert again.code == 1
    assert "no idea after 2 messages" in data(again)["rollout"]["failure"]["message"]

    (project / "hint").touch()
    parted = go(project, "rollout replay night 0 --json")
    assert (parted.code, data(parted)["parts_at"]) == (1, 1)
    assert "cannot replay" in data(parted)["rollout"]["failure"]["message"]


def test_a_workflow_of_a_config_is_replayed_with_its_grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = GitWorkspace(tmp_path)
    made.write("rollouts/graded/main.py", ROLLOUT)
    config = '[experiment]\nrollout = "graded"\nentrypoint = "main.py"\nmodel_path = "offline/calculator"\n'
    config += 'dataset = "graded"\n'
    made.write("configs/eval/graded.toml", config + "[secrets]\nrequired = []\n")
    write_rows(tmp_path / "data" / "graded.jsonl", 5)
    made.commit("a rollout")
    assert go(tmp_path, "eval run graded --limit 2 --name graded").code in (0, 1)
    found = data(go(tmp_path, "rollout replay graded 1 --json"))
    assert found["same"] is True
    assert found["rollout"]["scores"]["reward"]["value"] == found["recorded_scores"]["reward"]


def test_the_debugger_opens_where_the_agent_raised(project: Path) -> None:
    """In a real terminal: the frame is the agent's, and its variables are there."""
    said = run_in_terminal(
        project,
        ["rollout", "replay", "night", "1", "--pdb"],
        [(b"(Pdb)", b"p secret_of_this_frame\n"), (b"(Pdb)", b"q\n")],
    )
    assert b"LookupError: no idea after 2 messages" in said
    assert b"shown_agent.py" in said
    assert b"\r\n2\r\n" in said
