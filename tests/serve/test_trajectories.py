"""`trajectory.json` and `diagnostics.json`: when they are written, what is in them, what never is."""

import base64
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osmosis.llm.model import ChatRequest, Completion
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.rollout import Rollout
from osmosis.records.trajectory import Trajectory
from osmosis.sdk.types import RolloutSample
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext, WorkflowRollout
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server.queue import RolloutOutcome
from osmosis.serve.server.trace_files import EndedRollout, TrajectoryWriter
from support.attempts import run_attempt
from support.server import running_app

from .support import Crashes, NotANumber, OneCall, ScriptedModel, backend, loop_app, open_proxy, plan, say, server, task
from .test_v02 import Adds

KEY = "the-key-of-this-server"
BOTH = pytest.mark.parametrize("generation", ["0.3", "0.4"])


async def run(tmp_path: Path, workflow: type, generation: str = "0.3", **more: Any) -> Rollout:
    """One rollout, the server closed again: everything it writes is on disk."""
    grader = {"grader": more.pop("grader")} if "grader" in more else {}
    app = server(backend(workflow, root=tmp_path, **grader), tmp_path, api_key=KEY, **more)
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel(leaky)) as gate,
        served(ServerAt(url, api_key=KEY, generation=generation), gate, plan()) as agent,
    ):
        return await run_attempt(agent, gate.model, plan(), task())


def leaky(_: ChatRequest) -> Completion:
    return say(f"42 and {KEY}")


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("test-0-0/*"))


def read(tmp_path: Path, name: str) -> dict[str, Any]:
    text = (tmp_path / "test-0-0" / name).read_text()
    assert KEY not in text
    return json.loads(text)


@BOTH
async def test_a_rollout_leaves_its_trajectory_and_what_it_cost(tmp_path: Path, generation: str) -> None:
    await run(tmp_path, OneCall, generation, save_trajectories=True)
    assert files(tmp_path) == ["diagnostics.json", "trajectory.json"]
    body = read(tmp_path, "trajectory.json")
    document = Trajectory.model_validate(body)
    assert [step.source for step in document.steps] == ["system", "user", "agent"]
    assert document.steps[2].message == "42 and [redacted]"
    known = document.extra.osmosis
    assert (known["rollout_id"], known["label"], known["reward"], known["status"]) == ("test-0-0", "42", 0.0, "success")
    assert known["metrics"] == {"turns": 1.0}
    if generation == "0.3":  # the answer to the callback says what the model cost; who polls is told nothing
        assert document.agent.model_name == "scripted/model"
        assert body["steps"][2]["metrics"] == {"prompt_tokens": 7, "completion_tokens": 3, "cached_tokens": 0}
        assert body["final_metrics"]["total_prompt_tokens"] == 7
    diagnostics = read(tmp_path, "diagnostics.json")
    assert (diagnostics["status"], diagnostics["failure"]) == ("success", None)
    assert diagnostics["timings"]["duration_ms"] > 0


@BOTH
@pytest.mark.parametrize(("workflow", "phase", "steps"), [(Crashes, "agent", 2), (OneCall, "score", 3)])
async def test_a_failure_is_in_both_files(
    tmp_path: Path, generation: str, workflow: type, phase: str, steps: int
) -> None:
    await run(tmp_path, workflow, generation, grader=NotANumber, save_trajectories=True)
    assert read(tmp_path, "diagnostics.json")["failure"]["phase"] == phase
    body = read(tmp_path, "trajectory.json")
    assert (len(body["steps"]), body["extra"]["osmosis"]["failure"]["phase"]) == (steps, phase)


OWN = "Zp3_the-key-of-one-rollout-Qx7"
WRITTEN: list[Callable[[str], str]] = [
    str,
    lambda key: key.encode().hex(),
    lambda key: base64.b64encode(b"x" + key.encode()).decode(),
    lambda key: base64.b32encode(key.encode()).decode(),
    lambda key: "\n  ".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 10)),
    lambda key: json.dumps({"key": "\n".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 10))}),
]


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("key", [OWN, "a key/with&others"])
def test_the_key_of_a_rollout_is_in_no_file_however_it_is_written(
    tmp_path: Path, written: Callable[[str], str], key: str
) -> None:
    files = TrajectoryWriter(tmp_path)
    for rollout_id, text in (("r", f"mine is {written(key)}, he said"), ("plain", "nothing in here")):
        init = RolloutInit(
            rollout_id=rollout_id,
            initial_messages=[{"role": "user", "content": text}],
            chat_completions_url="http://127.0.0.1:1/v1",
            llm_api_key=key,
        )
        outcome = RolloutOutcome("success")
        files.put(EndedRollout(rollout_id, init, outcome, None, 0.0, 0.0, "2026-01-01T00:00:00Z"))
    files.close()
    said = {name: json.loads((tmp_path / name / "trajectory.json").read_text()) for name in ("r", "plain")}
    assert "[redacted]" in said["r"]["steps"][0]["message"]
    assert said["plain"]["steps"][0]["message"] == "nothing in here"


def test_a_conversation_that_cannot_be_written_costs_only_its_own_file(tmp_path: Path) -> None:
    files = TrajectoryWriter(tmp_path)
    for rollout_id, figure in (("cannot", float("nan")), ("can", 1.0)):
        init = RolloutInit(
            rollout_id=rollout_id,
            initial_messages=[{"role": "user", "content": "whole"}],
            chat_completions_url="http://127.0.0.1:1/v1",
        )
        sample = RolloutSample(messages=[], metrics={"figure": figure})
        outcome = RolloutOutcome("success", sample=sample)
        files.put(EndedRollout(rollout_id, init, outcome, None, 0.0, 0.0, "2026-01-01T00:00:00Z"))
    files.close()
    assert sorted(path.name for path in (tmp_path / "cannot").iterdir()) == ["diagnostics.json"]
    assert sorted(path.name for path in (tmp_path / "can").iterdir()) == ["diagnostics.json", "trajectory.json"]
    steps = json.loads((tmp_path / "can" / "trajectory.json").read_text())["steps"]
    assert [step["message"] for step in steps] == ["whole"]


class Private(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = ctx.rollout
        assert isinstance(rollout, WorkflowRollout)

        class Source:
            async def get_sample(self) -> RolloutSample:
                return RolloutSample(messages=ctx.prompt, trajectory_messages=None)

        rollout.set_sample_source(Source())


async def test_a_conversation_that_is_not_to_be_kept_is_not(tmp_path: Path) -> None:
    rollout = await run(tmp_path, Private, save_trajectories=True)
    assert rollout.value("reward") is not None
    assert files(tmp_path) == ["diagnostics.json"]


class Paints(OneCall):
    async def run(self, ctx: AgentWorkflowContext) -> Any:
        assert ctx.artifacts_dir is not None
        (ctx.artifacts_dir / "picture.txt").write_text("a cat")
        return await super().run(ctx)


@pytest.mark.parametrize(
    ("workflow", "more", "expected"),
    [
        (OneCall, {}, []),
        (Paints, {}, ["artifacts", "diagnostics.json", "trajectory.json"]),
        (Paints, {"save_trajectories": False}, ["artifacts"]),
    ],
)
async def test_nothing_is_written_unless_somebody_wants_it(
    tmp_path: Path, workflow: type, more: dict[str, Any], expected: list[str]
) -> None:
    await run(tmp_path, workflow, **more)
    assert files(tmp_path) == expected


async def test_the_artifact_root_asks_for_the_files_of_agent_loops_too(tmp_path: Path) -> None:
    environ = {"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path)}
    app = loop_app(Adds(), tmp_path, environ=environ)
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel()) as gate,
        served(ServerAt(url, generation="0.3"), gate, plan()) as agent,
    ):
        await run_attempt(agent, gate.model, plan(), task())
    body = read(tmp_path, "trajectory.json")
    assert body["extra"]["osmosis"]["reward"] == 1.0
    assert body["final_metrics"]["total_completion_tokens"] == 3
