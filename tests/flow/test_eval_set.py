"""Eval sets on this machine: configs x models x parameters, resumed and compared run by run."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from osmosis.base.jsonable import JsonObject
from osmosis.metrics.intervals import adjusted
from osmosis.records.run.history import EvalSet
from support.command_line import CommandRun, run_command
from support.endpoint import ModelEndpoint, Reply, text_reply
from support.eval_project import write_rows
from support.git_workspace import GitWorkspace

pytestmark = pytest.mark.slow

ROLLOUT = """
import os
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.workflow import Grader
from osmosis.sdk.workflow import AgentWorkflow

class Work(AgentWorkflow):
    async def run(self, ctx):
        with open("calls.txt", "a") as out:
            out.write("x")
        return [*ctx.prompt, {"role": "assistant", "content": "done"}]

class Right(Grader):
    async def grade(self, ctx):
        ctx.set_reward(0.0 if os.path.exists("worse") else 1.0)

backend = LocalBackend(Work, grader=Right)
"""
CONFIG = """
[experiment]
rollout = "multiply"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "multiply"

[secrets]
required = []
"""
SET = """
configs = ["multiply"]
models = ["offline/calculator", "offline/echo"]
params = [{temperature = 0.0, top_k = 4}]
limit = 8
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = GitWorkspace(tmp_path)
    made.write("rollouts/multiply/main.py", ROLLOUT)
    made.write("configs/eval/multiply.toml", CONFIG)
    made.write("configs/sets/nightly.toml", SET)
    write_rows(tmp_path / "data" / "multiply.jsonl", 10)
    return tmp_path


def go(folder: Path, *words: str) -> CommandRun:
    return run_command("eval", "set", *words, "--json", cwd=folder, environ={})


def test_arms_are_compared_with_the_first(workspace: Path) -> None:
    poor = ROLLOUT.replace('os.path.exists("worse")', "True")
    arms = '[arms.plain]\n[arms.twice]\nattempts = 2\nretry.rollouts = 1\n[arms.poor]\nconfig = "poor"\n'
    for name, text in (
        ("rollouts/poor/main.py", poor),
        ("configs/eval/poor.toml", CONFIG.replace('rollout = "multiply"', 'rollout = "poor"')),
        ("configs/sets/arms.toml", f'configs = ["multiply"]\n{arms}'),
    ):
        (workspace / name).parent.mkdir(exist_ok=True)
        (workspace / name).write_text(text)
    ran = go(workspace, "arms")
    assert ran.code == 0, ran.err
    rows = {row["run"]: row for row in ran.json["items"]}
    assert list(rows) == ["multiply--plain", "multiply--twice", "multiply--poor"]
    assert [row["verdict"] for row in rows.values()] == [None, "no clear difference", "worse"]
    assert [row["completed"] for row in rows.values()] == [10, 20, 10]
    assert any(row["unbeaten"] for row in rows.values() if row["mean"] == 1.0)
    stored = workspace / ".osmosis" / "runs" / "arms--multiply--twice" / "run.json"
    assert json.loads(stored.read_text())["plan"]["retry"]["rollouts"] == 1
    refused = go(workspace, "arms", "--on", "http://127.0.0.1:9", "--yes")
    assert "arms of a set count on this machine only" in refused.error["message"]


def test_a_set_is_run_resumed_and_compared(workspace: Path) -> None:
    first = go(workspace, "nightly", "--name", "monday")
    assert first.code == 0, first.err
    rows = first.json["items"]
    assert [row["run"] for row in rows] == [
        "multiply--offline-calculator--temperature-0.0--top_k-4",
        "multiply--offline-echo--temperature-0.0--top_k-4",
    ]
    assert [(row["completed"], row["mean"]) for row in rows] == [(8, 1.0), (8, 1.0)]
    stored = workspace / ".osmosis" / "runs" / f"monday--{rows[0]['run']}" / "run.json"
    assert json.loads(stored.read_text())["plan"]["model"]["params"] == {"temperature": 0.0, "top_k": 4}
    calls = (workspace / "calls.txt").read_text()
    assert go(workspace, "nightly", "--name", "monday").code == 0
    assert (workspace / "calls.txt").read_text() == calls  # everything was there

    (workspace / "worse").touch()
    compare = ("nightly", "--name", "tuesday", "--baseline", "monday")
    second = go(workspace, *compare)
    assert second.code == 0, second.err
    assert [(row["verdict"], row["difference"]) for row in second.json["items"]] == [("worse", -1.0)] * 2
    assert all(row["p_value"] < 0.05 for row in second.json["items"])
    assert go(workspace, *compare, "--fail-on-regression").code == 1


@pytest.mark.parametrize(
    ("words", "text", "code", "said"),
    [
        (["weekly"], SET, 1, "there is no config or set weekly"),
        (["nightly", "--fail-on-regression"], SET, 2, "needs --baseline"),
        (["nightly", "--baseline", "never"], SET, 1, "stored under never"),
        (["nightly", "--batch-size", "2"], SET, 2, "--batch-size is not for a set"),
        (["nightly", "--export", "otlp"], SET, 2, "--export is not for a set"),
        (["nightly"], "configs = []", 1, "configs: "),
        (["nightly"], SET + "model = 3", 1, "model: "),
        (["nightly"], "configs = [", 1, "nightly.toml"),
        (["nightly"], 'configs = ["divide"]', 1, "divide"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    workspace: Path, words: list[str], text: str, code: int, said: str
) -> None:
    (workspace / "configs/sets/nightly.toml").write_text(text)
    found = go(workspace, *words)
    assert found.code == code
    assert said in json.dumps(found.error)
    assert not (workspace / ".osmosis").exists()


def test_a_run_that_fails_is_a_line_of_the_table(workspace: Path) -> None:
    (workspace / "configs/sets/nightly.toml").write_text(
        'configs = ["multiply"]\nmodels = ["no-key/x", "offline/echo"]'
    )
    found = go(workspace, "nightly")
    assert found.code == 1
    broken, whole = found.json["items"]
    assert broken["error"]
    assert (whole["completed"], whole["error"]) == (10, None)


def test_every_combination_has_a_key_of_its_own() -> None:
    made = EvalSet(
        configs=["a", "configs/eval/b.toml"], models=["x/y", "x-y"], params=[{"temperature": 0}, {"top_p": 0.5}]
    )
    keys = [run.key for run in made.runs()]
    assert len(set(keys)) == 8
    assert keys[0] == "a--x-y--temperature-0"
    assert keys[2] == "a--x-y--temperature-0-2"
    assert keys[-1] == "b--x-y--top_p-0.5-2"


def test_sets_are_completed(workspace: Path) -> None:
    found = run_command("__complete", "--", "eval", "set", "", cwd=workspace)
    assert "nightly" in [line.split("\t")[0] for line in found.out.splitlines()]


def test_p_values_of_many_runs() -> None:
    assert adjusted([0.01, None, 0.04, 0.03]) == pytest.approx([0.03, None, 0.06, 0.06])
    assert adjusted([0.9, 0.8]) == [1.0, 1.0]


ASKING = ROLLOUT.replace(
    '        return [*ctx.prompt, {"role": "assistant", "content": "done"}]',
    "        async with ctx.chat() as chat:\n"
    "            return [*ctx.prompt, (await chat.complete(ctx.prompt)).message]",
)


def priced(body: JsonObject, number: int) -> Reply:
    """An answer that says what it cost: a quarter of a dollar."""
    reply = text_reply("done")
    reply.body["usage"]["cost"] = 0.25  # type: ignore[index]
    return reply


def questions(endpoint: ModelEndpoint) -> int:
    """Without those that only ask whether the model is there."""
    return sum("Say OK" not in str(body["messages"]) for body in endpoint.requests)


def test_the_budget_is_of_the_whole_set(workspace: Path) -> None:
    (workspace / "rollouts/multiply/main.py").write_text(ASKING)
    config = workspace / "configs/eval/multiply.toml"
    config.write_text(f"{config.read_text()}\n[evaluation]\nbatch_size = 1\n")
    with ModelEndpoint(priced) as endpoint:
        models = ", ".join(f'"{name}@{endpoint.url}"' for name in ("gpt-4o-mini", "gpt-4.1-mini", "gpt-4o"))
        (workspace / "configs/sets/nightly.toml").write_text(
            f'configs = ["multiply"]\nmodels = [{models}]\nlimit = 8\nmax_cost = 3.0\n'
            "[prices]\ngpt-4o-mini = [0.1, 0.2]\n'gpt-4.1-mini' = [0.1, 0.2]\ngpt-4o = [0.1, 0.2]\n"
        )
        found = go(workspace, "nightly")
        rows, asked = found.json["items"], questions(endpoint)
        assert (found.code, rows[0]["completed"], rows[0]["cost_usd"]) == (1, 8, 2.0)
        assert rows[1]["completed"] < 8, "the second run had a dollar left"
        assert "budget of 3 USD is spent" in rows[2]["error"]
        assert not (workspace / ".osmosis/runs" / rows[2]["name"]).exists()
        assert go(workspace, "nightly").code == 1
        assert questions(endpoint) == asked, "what is spent stays spent when the set is resumed"


def test_ctrl_c_ends_the_set_with_its_table_and_it_goes_on_later(workspace: Path) -> None:
    (workspace / "rollouts/multiply/main.py").write_text(ASKING)
    stuck = threading.Event()

    def decide(body: JsonObject, number: int) -> Reply:
        if number < 3 or resumed:
            return text_reply("done")
        stuck.set()
        return Reply(hang=True)

    resumed = False
    with ModelEndpoint(decide) as endpoint:
        models = ", ".join(f'"m{n}@{endpoint.url}"' for n in range(2))
        (workspace / "configs/sets/nightly.toml").write_text(
            f'configs = ["multiply"]\nmodels = [{models}]\nlimit = 8\n'
        )
        words = [sys.executable, "-m", "osmosis", "--json", "eval", "set", "nightly"]
        process = subprocess.Popen(
            words, cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            assert stuck.wait(60)
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(1.0)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode == 130, err
        first, second = json.loads(out)["items"]
        assert first["completed"] < 8
        assert second["completed"] == 0
        resumed = True
        again = go(workspace, "nightly")
        assert (again.code, [row["completed"] for row in again.json["items"]]) == (0, [8, 8]), again.err
