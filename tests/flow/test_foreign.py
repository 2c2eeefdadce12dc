"""Environments of other packages, the real ones: by name where they are installed, and as a rollout of a workspace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uv

import osmosis
from osmosis.sdk.foreign import PACKAGES
from support.git_workspace import GitWorkspace

pytestmark = [pytest.mark.slow, pytest.mark.network]
GYM = "reasoning-gym:chain_sum?size=4&seed=7&max_terms=3"
CONFIG = """
[experiment]
rollout = "gym"
entrypoint = "main.py"
model_path = "offline/calculator"
dataset = "gym"

[secrets]
required = []
"""
PROJECT = (
    '[project]\nname = "gym"\nversion = "1"\nrequires-python = ">=3.10"\ndependencies = ["osmosis-ai", "{package}"]\n'
)
SUMS = """
import itertools
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str = ""


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(self.data.answer in (trace.last_reply or ""))

    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return 0.25


class SumsConfig(vf.TasksetConfig):
    count: int = 2
    endless: bool = False


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def __init__(self, config):
        super().__init__(config)
        self.INFINITE = config.endless

    def load(self):
        for n in itertools.count() if self.config.endless else range(self.config.count):
            yield SumTask(SumData(id=f"s{n}", prompt=f"What is {n}+1?", system_prompt="Be brief.", answer=str(n + 1)))


__all__ = ["Sums"]
"""


TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Target, accuracy, includes, model_graded_qa, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool


@tool
def calculator():
    async def execute(expression: str) -> str:
        \"\"\"Calculate.

        Args:
            expression: What to calculate.
        \"\"\"
        return str(eval(expression, {}))

    return execute


@scorer(metrics=[accuracy()])
def sizes():
    async def score(state, target: Target) -> Score:
        return Score(value={"epoch": state.epoch, "tools": sum(m.role == "tool" for m in state.messages)})

    return score


@task
def sums(count: int = 2):
    rows = [Sample(input=f"What is {n}+1?", target=str(n + 1), id=f"s{n}") for n in range(count)]
    opening = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="What is 5+1?")]
    rows.append(Sample(input=opening, target="6"))
    return Task(dataset=rows, solver=[use_tools(calculator()), generate()], scorer=[includes(), sizes()], epochs=5)


@task
def judged():
    return Task(dataset=[Sample(input="What is 2+1?", target="3")], solver=generate(), scorer=model_graded_qa())
"""


ENVIRONMENT = """
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State


class Answer(Action):
    answer: str


class Question(Observation):
    question: str = ""


class Base:
    state = State()

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = seed
        return Question(question=f"What is {seed}+1?")


class Sums(Base, Environment):
    def step(self, action, timeout_s=None, **kwargs):
        right = str(self.number + 1) in action.answer
        self.number += 1
        return Question(question=f"What is {self.number}+1?", reward=float(right), done=self.number >= 7)


class Tools(Base, MCPEnvironment):
    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: float, b: float) -> float:
            return a + b

        super().__init__(server)

    def _step_impl(self, action, timeout_s=None, **kwargs):
        raise ValueError("only tools")

    async def step_async(self, action, timeout_s=None, **kwargs):
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        return seen.model_copy(update={"reward": 0.5})


app = create_app(Sums, Answer, Question, env_name="sums")
tools = create_app(Tools, CallToolAction, CallToolObservation, env_name="tools")
"""


@pytest.fixture(scope="session")
def python_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an environment that has this osmosis and the package."""

    def make(package: str) -> Path:
        folder = tmp_path_factory.mktemp("environment")
        python = folder / "bin" / "python"
        subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", sys.executable, folder], check=True)
        subprocess.run([uv.find_uv_bin(), "pip", "install", "--quiet", "--python", python, package], check=True)
        ours = [str(Path(osmosis.__file__).parents[1]), *(path for path in sys.path if path.endswith("site-packages"))]
        (site,) = (folder / "lib").glob("*/site-packages")
        (site / "osmosis.pth").write_text("\n".join(ours))
        return python

    return make


def run_osmosis(python: str | Path, folder: Path, *words: str, **environ: str) -> str:
    command = [str(python), "-m", "osmosis", *words]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rollouts_of(folder: Path, name: str) -> list[dict[str, Any]]:
    out = run_osmosis(sys.executable, folder, "eval", "export", name, "--format", "jsonl", "-o", f"{name}.jsonl")
    assert out
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_reasoning_gym_by_name(tmp_path: Path, python_with: Callable[[str], Path]) -> None:
    python = python_with(PACKAGES["reasoning-gym"])
    flags = ("--model", "offline/calculator", "--n", "2")
    run_osmosis(python, tmp_path, "eval", "-m", GYM, *flags, "--name", "first")
    run_osmosis(python, tmp_path, "eval", "-m", GYM, *flags, "--name", "again")
    first, again = rollouts_of(tmp_path, "first"), rollouts_of(tmp_path, "again")
    assert len(first) == 8
    assert {row["row_key"] for row in first} == {f"chain_sum-7-{number}" for number in range(4)}
    assert [row["prompt"] for row in first] == [row["prompt"] for row in again]
    assert all(0 <= row["reward"] <= 1 for row in first)
    stored = json.loads((tmp_path / ".osmosis" / "runs" / "first" / "run.json").read_text())
    assert stored["plan"]["score_bounds"] == {"reward": [0.0, 1.0]}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="verifiers needs Python 3.11")
@pytest.mark.soak  # a minute and a half, most of it its installation
def test_a_taskset_of_verifiers_runs_and_is_scored_by_itself(
    tmp_path: Path, python_with: Callable[[str], Path]
) -> None:
    (tmp_path / "sums_env.py").write_text(SUMS)
    python = python_with(PACKAGES["verifiers"])
    flags = ("--model", "offline/calculator", "--n", "2", "--max-tokens", "50")
    run_osmosis(python, tmp_path, "eval", "-m", "verifiers:sums-env?count=3", *flags, "--name", "sums")
    rollouts = rollouts_of(tmp_path, "sums")
    assert [(row["row_key"], row["expected"]) for row in rollouts[::2]] == [("s0", "1"), ("s1", "2"), ("s2", "3")]
    assert all(row["reward"] == 2 * row["reward.part.correct"] + row["reward.part.length"] for row in rollouts)
    assert all(row["prompt_tokens"] > 0 and row["answer"] for row in rollouts), "the calls went past the model's proxy"
    refused = {
        "verifiers:sums-env?endless=1": "infinite",
        "verifiers:sums-env?no=1": "Extra inputs",
        "verifiers:no": "no",
    }
    for name, reason in refused.items():
        command = [str(python), "-m", "osmosis", "eval", "-m", name, "--model", "offline/calculator"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0
        assert reason in done.stderr, name


def test_a_task_of_inspect_runs_with_its_tools_and_scorers(tmp_path: Path, python_with: Callable[[str], Path]) -> None:
    (tmp_path / "sums.py").write_text(TASKS)
    python, flags = python_with(PACKAGES["inspect"]), ("--model", "offline/calculator")
    run_osmosis(python, tmp_path, "eval", "-m", "inspect:sums.py@sums?count=3", *flags, "--n", "2", "--name", "sums")
    rollouts = rollouts_of(tmp_path, "sums")
    assert [row["row_key"] for row in rollouts[::2]] == ["s0", "s1", "s2", "4"]
    assert {row["reward.part.sizes.epoch"] for row in rollouts if row["row_key"] == "s1"} == {1, 2}
    assert all(row["reward"] == row["reward.part.includes"] for row in rollouts)
    assert sum(row["reward"] for row in rollouts) >= 6
    assert all(row["prompt_tokens"] > 0 and row["expected"] for row in rollouts), (
        "the calls went past the model's proxy"
    )
    refused = {"sums.py": "judged, sums", "sums.py@sums?no=1": "count: int = 2", "sums.py@judged": "name a judge"}
    for name, reason in refused.items():
        command = [str(python), "-m", "osmosis", "eval", "-m", f"inspect:{name}", *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0
        assert reason in done.stdout + done.stderr, name


@pytest.mark.soak
def test_environments_of_openenv_answer_by_text_and_by_tools(
    tmp_path: Path, python_with: Callable[[str], Path]
) -> None:
    for name, app in {"sums": "sums_app:app", "tools": "sums_app:tools", "broken": "sums_app:none"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "sums_app.py").write_text(ENVIRONMENT)
        (tmp_path / name / "openenv.yaml").write_text(f"spec_version: 1\nname: {name}\nruntime: fastapi\napp: {app}\n")
    python, flags = python_with(PACKAGES["openenv"]), ("--model", "offline/calculator", "--n", "2")
    run_osmosis(python, tmp_path, "eval", "-m", "openenv:sums?size=3&seed=4&prompt=Add.", *flags, "--name", "text")
    text = rollouts_of(tmp_path, "text")
    assert [row["row_key"] for row in text[::2]] == ["Sums-4", "Sums-5", "Sums-6"]
    steps = [7 - row["row.metadata"]["seed"] for row in text]
    assert all(0 <= row["reward"] <= count for row, count in zip(text, steps, strict=True))
    assert sum(row["reward"] for row in text) >= sum(steps) - 4, "the questions were not those of the row's seed"
    run_osmosis(python, tmp_path, "eval", "-m", "openenv:tools?size=2", *flags, "--name", "tools")
    assert [(row["reward"], row["num_tool_calls"]) for row in rollouts_of(tmp_path, "tools")] == [(0.5, 1)] * 4
    for name, reason in {"broken": "none", "missing": "openenv.yaml", "sums?sise=3": "sise"}.items():
        command = [str(python), "-m", "osmosis", "eval", "-m", f"openenv:{name}", *flags]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0
        assert reason in done.stderr, name


@pytest.mark.soak
def test_reasoning_gym_as_a_rollout_of_a_workspace(tmp_path: Path) -> None:
    workspace = GitWorkspace(tmp_path)
    workspace.write("rollouts/gym/main.py", f"import osmosis\n\nbackend = osmosis.load_environment({GYM!r})\n")
    workspace.write("rollouts/gym/pyproject.toml", PROJECT.format(package=PACKAGES["reasoning-gym"]))
    workspace.write("configs/eval/gym.toml", CONFIG)
    run_osmosis(sys.executable, tmp_path, "dataset", "from", GYM, "-o", "data/gym.jsonl")
    run_osmosis(sys.executable, tmp_path, "eval", "run", "gym", "--name", "config")
    assert len([row for row in rollouts_of(tmp_path, "config") if row["reward"] is not None]) == 4


PARCELS = '''
import socket, sys
import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_artifact_update_event, new_text_message
from a2a.helpers import new_text_status_update_event
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from starlette.applications import Starlette


class Parcels(AgentExecutor):
    """Says where parcel 17 is once it has the number; asks for it by a task that waits for input."""

    async def execute(self, context, queue):
        text = context.get_user_input()
        if "sum" in text:
            await queue.enqueue_event(new_text_message("42", context_id=context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await queue.enqueue_event(task)
        place = {"task_id": task.id, "context_id": task.context_id}
        state, says = TaskState.TASK_STATE_INPUT_REQUIRED, "Which number?"
        if "nothing" in text:
            state, says = TaskState.TASK_STATE_FAILED, "cannot help"
        elif "17" in text:
            state, says = TaskState.TASK_STATE_COMPLETED, "done"
            await queue.enqueue_event(new_text_artifact_update_event(**place, name="place", text="It is in Rome."))
        await queue.enqueue_event(new_text_status_update_event(**place, state=state, text=says))

    async def cancel(self, context, queue): ...


class Guard:
    """Lets in whoever has the key; without one there is none."""

    def __init__(self, app, key):
        self.app, self.key = app, key

    async def __call__(self, scope, receive, send):
        sent = dict(scope.get("headers") or ()).get(b"authorization", b"").decode()
        if scope["type"] == "http" and self.key and sent != f"Bearer {self.key}":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"who are you?"})
            return
        await self.app(scope, receive, send)


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
url = f"http://127.0.0.1:{listener.getsockname()[1]}"
elsewhere = "elsewhere" in sys.argv
rpc = "http://127.0.0.1:9/rpc" if elsewhere else url + "/rpc"
place = AgentInterface(url=rpc, protocol_binding="JSONRPC", protocol_version="1.0")
card = AgentCard(
    name="parcels", description="d", version="1", supported_interfaces=[place], capabilities=AgentCapabilities(),
    default_input_modes=["text"], default_output_modes=["text"],
    skills=[AgentSkill(id="s", name="find", description="d", tags=["t"])],
)
handler = DefaultRequestHandler(agent_executor=Parcels(), task_store=InMemoryTaskStore(), agent_card=card)
app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/rpc")])
print(url, flush=True)
key = "" if elsewhere else "k-123"
uvicorn.Server(uvicorn.Config(Guard(app, key), log_level="warning")).run(sockets=[listener])
'''
PEOPLE = [
    {"user_prompt": "What is the sum of 40 and 2?", "ground_truth": "42"},
    {"user_prompt": "Where is it?", "ground_truth": "Rome", "user": {"script": ["Number 17."], "max_turns": 1}},
    {"user_prompt": "Is there nothing?", "ground_truth": "x"},
]
DESK = """
from osmosis import AgentWorkflow, Grader, SimulatedUser
from osmosis.sdk.foreign.a2a import RemoteAgent

class Desk(AgentWorkflow):
    async def run(self, ctx):
        async with ctx.chat() as chat, RemoteAgent("URL", key_env="PARCELS_KEY") as agent:
            first = [*ctx.prompt, (await chat.complete(ctx.prompt)).message]
            user = SimulatedUser("offline/echo", script=["Where is parcel 17?"], max_turns=1)
            return await user.talk([*first, await user.reply(first)], agent.answer)

class Found(Grader):
    async def grade(self, ctx):
        ctx.set_reward(float(ctx.label in ctx.sample.messages[-1]["content"]))
"""


@contextmanager
def a2a_server(python: Path, folder: Path, *words: str) -> Iterator[str]:
    (folder / "parcels.py").write_text(PARCELS)
    server = subprocess.Popen([python, "parcels.py", *words], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()


def test_an_agent_over_a2a_is_evaluated_and_is_part_of_a_workflow(
    tmp_path: Path, python_with: Callable[[str], Path]
) -> None:
    python = python_with(PACKAGES["a2a"])
    key = {"PARCELS_KEY": "k-123"}
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PEOPLE))
    (tmp_path / "scores.py").write_text(
        "def found(solution_str, ground_truth, extra_info):\n    return float(ground_truth in solution_str)\n"
    )
    with a2a_server(python, tmp_path) as url:
        agent = ("-m", f"a2a:{url}?key_env=PARCELS_KEY", "-d", "d.jsonl", "--eval-fn", "scores:found")
        run_osmosis(python, tmp_path, "eval", *agent, "--name", "remote", **key)
        (tmp_path / "desk.py").write_text(DESK.replace("URL", url))
        run_osmosis(
            python, tmp_path, "eval", "-m", "desk:Desk", "-d", "d.jsonl", "--model", "offline/echo", "--name", "desk",
            "--rows", "1", **key,
        )  # fmt: skip
        refused = subprocess.run(
            [python, "-m", "osmosis", "eval", *agent], cwd=tmp_path, capture_output=True, text=True,
            env={**os.environ, "PARCELS_KEY": "another"},
        )  # fmt: skip
    once, asked, failed = rollouts_of(tmp_path, "remote")
    assert (once["scores:found"], once["answer"]) == (1.0, "42")
    assert (asked["scores:found"], asked["answer"]) == (1.0, "It is in Rome."), "it was asked again, in its task"
    assert "left its task failed: cannot help" in failed["failure_message"]
    (desk,) = rollouts_of(tmp_path, "desk")
    assert desk["reward"] == 1.0
    assert refused.returncode != 0
    assert "401" in refused.stderr
    with a2a_server(python, tmp_path, "elsewhere") as url:
        flags = ("-m", f"a2a:{url}?key_env=PARCELS_KEY", "-d", "d.jsonl", "--eval-fn", "scores:found")
        command = [python, "-m", "osmosis", "eval", *flags]
        away = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **key})
    assert away.returncode != 0
    assert "PARCELS_KEY is not sent there" in away.stderr
