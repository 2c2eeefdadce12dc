"""`osmosis optimize`: a real search with GEPA over the real engine; only the two models are offline stand-ins."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from osmosis.base.git import Git
from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint, Reply
from support.git_workspace import GitWorkspace
from support.terminal import run_in_terminal

pytestmark = pytest.mark.slow

MAIN = """
from osmosis import AgentWorkflow, Grader
from {module} import instructions

class Numbers(AgentWorkflow):
    async def run(self, ctx):
        text = instructions or ctx.prompts["task"]
        messages = [{"role": "user", "content": text + "\\n" + ctx.prompt[-1]["content"]}]
        async with ctx.chat() as chat:
            messages.append((await chat.complete(messages)).message)
        return messages

class Exact(Grader):
    async def grade(self, ctx):
        answer = ctx.sample.messages[-1]["content"].rpartition("#### ")[2]
        ctx.set_reward(float(answer == ctx.label), reason="answered " + answer)
"""
TEXTS = """
from pathlib import Path

file = Path(__file__).with_name("instructions.md")
instructions = file.read_text().strip() if file.exists() else ""
if "quotient" in instructions:
    raise ValueError("a text that breaks the code")
"""
CONFIG = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
dataset = "numbers"
model_path = "offline/calculator"

[optimize]
reflection_model = "offline/reflection"
max_rollouts = 150
validation_rows = 8
test_rows = 16
{more}

[secrets]
required = []
"""
SEED = "Answer the question.\n"
PRODUCT = "Give the product of the two numbers.\n"


def make_workspace(root: Path, file: str = "prompts/task.md", more: str = "", rows: int = 30) -> GitWorkspace:
    workspace = GitWorkspace(root)
    module = f"texts_{Path(file).stem}"  # commands of one process share modules of one name
    workspace.write("rollouts/multiply/main.py", MAIN.replace("{module}", module))
    workspace.write(f"rollouts/multiply/{module}.py", TEXTS)
    workspace.write(f"rollouts/multiply/{file}", SEED)
    workspace.write("configs/optimize/numbers.toml", CONFIG.format(more=more))
    pairs = [(11 + i, 97 - i) for i in range(rows)]
    lines = [json.dumps({"user_prompt": f"{a} and {b}", "ground_truth": str(a * b)}) for a, b in pairs]
    workspace.write("data/numbers.jsonl", "\n".join(lines))
    return workspace


def go(root: Path, *words: str) -> CommandRun:
    return run_command("optimize", "numbers", *words, "--json", cwd=root)


def test_a_prompt_that_fails_is_improved_tested_and_written(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    file = tmp_path / "rollouts/multiply/prompts/task.md"
    ended = go(tmp_path)
    assert ended.code == 0, ended.err
    data = ended.json["data"]
    assert (data["verdict"], data["rows"]) == ("better", {"train": 6, "validation": 8, "test": 16})
    assert data["comparison"]["difference_ci"][0] > 0
    assert data["rollouts"] <= 150
    assert [(each["validation"], each["is_pareto"]) for each in data["candidates"][:1]] == [(0.0, False)]
    assert data["candidates"][-1]["parent"] == "seed"
    assert file.read_text() == SEED
    Git(workspace.root).text("apply", "--check", str(Path(data["folder"]) / "winner.diff"))

    again = go(tmp_path, "--apply").json["data"]
    assert (again.pop("is_applied"), data.pop("is_applied")) == (True, False)
    assert again == data
    assert file.read_text() == PRODUCT
    ran = {
        folder.name: {json.loads(line)["row_index"] for line in (folder / "rollouts.jsonl").open()}
        for folder in Path(data["folder"]).glob("runs/*")
    }
    tested = ran.pop("seed") & ran.pop(data["winner"])
    assert len(tested) >= 16
    assert all(len(rows) <= 14 for rows in ran.values())  # of the others none ran a test row


def test_a_person_sees_the_diff_and_is_asked_before_a_text_is_written(tmp_path: Path) -> None:
    make_workspace(tmp_path)
    file = tmp_path / "rollouts/multiply/prompts/task.md"
    for answer, text in ((b"n", SEED), (b"y", PRODUCT)):
        shown = run_in_terminal(tmp_path, ["optimize", "numbers"], [(b"Write these texts", answer)])
        assert shown.index(b"+Give the product of the two numbers.") < shown.index(b"Write these texts")
        assert file.read_text() == text


def test_a_text_that_is_a_link_is_refused(tmp_path: Path) -> None:
    make_workspace(tmp_path)
    outside = tmp_path / "secret.md"
    outside.write_text("a secret\n")
    file = tmp_path / "rollouts/multiply/prompts/task.md"
    file.unlink()
    file.symlink_to(outside)
    assert go(tmp_path).error["message"] == "a text cannot be a link: prompts/task.md"


def test_an_interrupted_search_goes_on_and_ends_as_if_nothing_had_been(tmp_path: Path) -> None:
    whole, cut = make_workspace(tmp_path / "whole"), make_workspace(tmp_path / "cut")
    process = subprocess.Popen(
        [sys.executable, "-m", "osmosis", "optimize", "numbers", "--json"],
        cwd=cut.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    while process.poll() is None and not [*cut.root.glob(".osmosis/optimize/*/runs/seed/rollouts.jsonl")]:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    ends = [go(workspace.root).json["data"] for workspace in (whole, cut)]
    folders = [Path(end.pop("folder")) for end in ends]
    assert folders[0].name == folders[1].name
    assert ends[0] == ends[1]
    counts = [sum(1 for file in folder.glob("runs/*/rollouts.jsonl") for _ in file.open()) for folder in folders]
    assert counts == [ends[0]["rollouts"]] * 2


def test_an_outage_ends_the_search_and_is_no_score(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    is_away = True
    with ModelEndpoint(lambda body, number: Reply({}, 401) if is_away and number > 4 else None) as endpoint:
        config = (tmp_path / "configs/optimize/numbers.toml").read_text()
        config = config.replace("offline/calculator", "m").replace(
            "[secrets]", f'[advanced]\nbase_url = "{endpoint.url}"\n[secrets]'
        )
        workspace.write("configs/optimize/numbers.toml", config)
        ended = go(tmp_path)
        assert (ended.code, ended.error["details"]["hint"]) == (1, "what ran is kept: the same command goes on")
        is_away = False
        data = go(tmp_path).json["data"]
    assert data["verdict"] == "better"
    lines = [json.loads(line) for file in Path(data["folder"]).glob("runs/*/rollouts.jsonl") for line in file.open()]
    assert not [line for line in lines if line.get("failure")]
    assert (len(lines), data["cost_usd"]) == (data["rollouts"], None)


def test_a_file_read_at_import_is_improved_and_a_candidate_that_breaks_the_code_is_none(tmp_path: Path) -> None:
    make_workspace(tmp_path, "instructions.md", 'files = ["instructions.md"]\nseed = 1')
    ended = go(tmp_path, "--apply")
    assert ended.code == 0, ended.err
    assert (tmp_path / "rollouts/multiply/instructions.md").read_text() == PRODUCT
    folder = Path(ended.json["data"]["folder"])
    texts = {path.parts[-4]: path.read_text() for path in folder.glob("candidates/*/rollouts/*/instructions.md")}
    broken = {name for name, text in texts.items() if "quotient" in text}
    assert broken
    assert broken.isdisjoint(path.name for path in folder.glob("runs/*"))


@pytest.mark.parametrize(
    ("file", "more", "rows", "message"),
    [
        ("other.md", "", 30, "has no prompts/*.md, so there is nothing to improve"),
        ("prompts/task.md", 'prompts = ["tone"]', 30, "a text cannot be read"),
        ("prompts/task.md", "", 20, "the dataset has 20 different rows"),
        ("prompts/task.md", "[evaluation]\nn = 3", 30, "max_rollouts = 150 is too few"),
        ("prompts/task.md", "[evaluation]\nmax_cost = 3.0", 30, "invalid optimize config"),
    ],
)
def test_what_cannot_work_is_said_before_anything_runs(
    tmp_path: Path, file: str, more: str, rows: int, message: str
) -> None:
    make_workspace(tmp_path, file, more, rows)
    ended = go(tmp_path)
    assert message in ended.error["message"]
    assert not [*tmp_path.glob(".osmosis/optimize/*/runs")]


def test_without_gepa_the_command_that_installs_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_workspace(tmp_path)
    monkeypatch.setitem(sys.modules, "gepa", None)
    ended = go(tmp_path)
    assert ended.error["message"] == "gepa is not installed"
    assert "gepa" in ended.error["details"]["hint"]


def test_a_workspace_without_such_a_config_is_told_where_to_write_it(tmp_path: Path) -> None:
    make_workspace(tmp_path)
    (tmp_path / "configs/optimize/numbers.toml").unlink()
    ended = run_command("optimize", "run", "--json", cwd=tmp_path)
    assert ended.error["details"]["hint"] == "write configs/optimize/NAME.toml"


def test_check_knows_the_config(tmp_path: Path) -> None:
    make_workspace(tmp_path, more="minibach = 2\n[evaluation]\nlimit = 5")
    checked = run_command("check", "--json", cwd=tmp_path)
    assert checked.code == 1
    problems = {item["key"]: item["fix"] for item in checked.json["items"] if "optimize" in item["where"]}
    assert problems == {
        "optimize.minibach": "did you mean minibatch?",
        "evaluation.limit": "remove it; limits are in [optimize]",
    }
