"""Every folder under `examples/` runs as its README says, each in a process of its own."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit

from osmosis.records.config.check import check_config
from support.agent_programs import write_stand_ins

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OSMOSIS = [sys.executable, "-m", "osmosis"]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))


def run(command: list[str], cwd: Path, *, code: int = 0) -> str:
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OSMOSIS_", "OPENAI_"))}
    environ |= {"OSMOSIS_CACHE_DIR": str(cwd / ".cache"), "CI": "1"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("**/configs/*/*.toml")), ids=lambda path: path.stem)
def test_the_configs_of_workspaces_can_be_submitted(path: Path) -> None:
    _, issues = check_config(path.parent.name, tomlkit.parse(path.read_text(encoding="utf-8")).unwrap())
    assert not issues


def test_rewards_run(examples: Path) -> None:
    out = run([sys.executable, "reward_functions.py"], examples)
    assert [line.split()[-1] for line in out.splitlines()] == ["1.0", "1.0", "1.0"]


def test_evaluating_in_python(examples: Path) -> None:
    folder = examples / "python_api"
    out = run([sys.executable, "evaluate.py"], folder).splitlines()
    assert out[0].startswith("<Run careful: 36 of 36 rollouts, exact ")
    assert out[1].endswith(", better")
    assert sorted(path.parent.name for path in folder.glob(".osmosis/runs/*/report.json")) == [
        "careful",
        "hasty",
        "turns-2",
        "turns-4",
    ]


def test_rubric_file_is_judged(examples: Path) -> None:
    words = ["--json", "eval-rubric", "-r", "support_followup", "-d", "sample_data.jsonl", "-o", "report.json"]
    shown = json.loads(run([*OSMOSIS, *words], examples))["data"]
    assert shown["overall_statistics"]["success_count"] == 2
    scores = [record["runs"][0]["score"] for record in shown["records"]]
    assert scores[0] > scores[1]


def test_rubric_function_is_used(examples: Path) -> None:
    folder = examples
    assert run([sys.executable, "rubric_functions.py"], folder).strip() == "score: 1.0"
    words = ["--json", "eval-rubric", "-r", "policy_grounding", "-d", "sample_data.jsonl", "-o", "report.json"]
    shown = json.loads(run([*OSMOSIS, *words, "--rubric-fn", "rubric_functions:judged_and_short"], folder))["data"]
    assert shown["overall_statistics"]["success_count"] == 1


def test_calculator_loop(examples: Path) -> None:
    folder = examples / "calculator"
    assert (
        json.loads(run([*OSMOSIS, "--json", "validate", "-m", "server:agent_loop"], folder))["data"]["tool_count"] == 4
    )
    words = ["--json", "test", "-m", "server:agent_loop", "-d", "test_data.jsonl", "--model", "offline/calculator"]
    results = json.loads(run([*OSMOSIS, *words], folder))["data"]["results"]
    assert len(results) == 5
    assert 0 < sum(one["reward"] for one in results) <= 5


def test_workflow_and_grader(examples: Path) -> None:
    words = ["--json", "eval", "-m", "main:backend", "-d", "data.jsonl", "--model", "offline/calculator", "--n", "3"]
    data = json.loads(run([*OSMOSIS, *words], examples / "workflow"))["data"]
    assert data["summary"]["total_runs"] == 36
    assert 0 < data["summary"]["reward"]["mean"] < 1


@pytest.mark.usefixtures("isolated")
def test_code_of_a_model_runs_in_a_sandbox(examples: Path) -> None:
    words = ["--json", "eval", "-m", "main:backend", "-d", "data.jsonl", "--model", "offline/echo", "--name", "coder"]
    data = json.loads(run([*OSMOSIS, *words], examples / "code_sandbox"))["data"]
    assert data["summary"]["total_runs"] == 4
    assert data["summary"]["failures"] == [], data["summary"]
    assert data["summary"]["reward"]["mean"] == 0.5, "the right one, and the one that finds nothing to steal"


def test_mcp_folder(examples: Path) -> None:
    words = ["--json", "eval", "--mcp", "./mcp", "-d", "data.jsonl", "--eval-fn", "rewards:last_number"]
    data = json.loads(run([*OSMOSIS, *words, "--model", "offline/calculator"], examples / "mcp_tools"))["data"]
    assert data["summary"]["eval_fns"]["rewards:last_number"]["mean"] > 0.3


@pytest.mark.parametrize(("folder", "library"), [("openai_agents", "agents"), ("strands_agents", "strands")])
def test_frameworks(examples: Path, folder: str, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    words = ["--json", "eval", "-m", "main:backend", "-d", "../workflow/data.jsonl", "--model", "offline/calculator"]
    data = json.loads(run([*OSMOSIS, *words], examples / folder))["data"]
    assert data["summary"]["total_runs"] == 12
    assert data["summary"]["total_tokens"] > 0
    assert 0.3 < data["summary"]["reward"]["mean"] <= 1


@pytest.mark.parametrize("name", ["claude-code", "codex", "skill-ab"])
def test_agent_programs(examples: Path, name: str) -> None:
    """As printed, with stand-ins of the programs themselves, which `make harnesses` tries."""
    folder = examples / name
    search_path = [write_stand_ins(examples / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    printed = re.findall(r"^ {4}(osmosis (?:.*\\\n)*.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert printed
    for command in printed:
        out = run(["env", f"PATH={':'.join(search_path)}", "sh", "-c", command], folder)
    rollouts = [json.loads(line) for path in folder.glob(".osmosis/runs/*/rollouts.jsonl") for line in path.open()]
    assert {rollout["status"] for rollout in rollouts} == {"success"}, rollouts
    assert {rollout["scores"]["checks:answered"]["value"] for rollout in rollouts} == {1.0}
    if name == "skill-ab":
        systems = {rollout["messages"][0]["content"] for rollout in rollouts}
        assert systems == {(folder / arm / "AGENTS.md").read_text() for arm in ("plain", "with-skill")}
        assert "0 gained, 0 lost" in out
