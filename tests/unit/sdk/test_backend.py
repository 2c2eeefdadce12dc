"""`LocalBackend.execute`: every way a rollout can end, and what the caller learns about it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from osmosis.errors import ModelError
from osmosis.records.protocol.messages import RolloutInit
from osmosis.records.run.rollout import Category, Phase
from osmosis.sdk.backend import LocalBackend
from osmosis.sdk.score_functions import score_function
from osmosis.sdk.types import AgentWorkflowConfig, ConcurrencyConfig, GraderConfig, RolloutSample
from osmosis.sdk.workflow import (
    AgentWorkflow,
    AgentWorkflowContext,
    AgentWorkflowOutput,
    Grader,
    GraderContext,
    WorkflowRollout,
    get_rollout_context,
)
from osmosis.testing.scripted import ScriptedLLM, says
from support.waiting import until


def init(**more: Any) -> RolloutInit:
    given = {
        "initial_messages": [{"role": "user", "content": "2+2"}],
        "label": "4",
        "rollout_id": "r-1",
        "chat_completions_url": "http://127.0.0.1:9/r-1",
        "metadata": {"kind": "sum"},
    }
    return RolloutInit(**{**given, **more})


class Ask(AgentWorkflow[AgentWorkflowConfig]):
    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[dict[str, Any]]:
        async with ctx.chat() as chat:
            answer = await chat.complete(ctx.prompt, temperature=0.3)
        return [*ctx.prompt, answer.message]


class Exact(Grader[GraderConfig]):
    async def grade(self, ctx: GraderContext) -> None:
        assert ctx.sample is not None
        ctx.set_reward(1.0 if ctx.sample.messages[-1]["content"] == ctx.label else 0.0)


def workflow(body: Any) -> type[AgentWorkflow[Any]]:
    class Made(AgentWorkflow[Any]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> Any:
            return await body(ctx)

    return Made


def grader(body: Any) -> type[Grader[Any]]:
    class Made(Grader[Any]):
        async def grade(self, ctx: GraderContext) -> None:
            await body(ctx)

    return Made


async def _messages(ctx: Any) -> list[dict[str, Any]]:
    return [*ctx.prompt, {"role": "assistant", "content": "4"}]


async def test_success_with_reward_and_states() -> None:
    llm, states = ScriptedLLM([says("4")]), []
    result = await LocalBackend(Ask, grader=Exact).execute(init(), on_state=states.append, transport=llm.respond)
    assert (result.status, result.err_phase, result.graded) == ("success", None, True)
    assert result.sample is not None
    assert (result.sample.reward, result.sample.label) == (1.0, "4")
    assert states == ["queued", "running", "grading"]
    assert llm.questions[0]["temperature"] == 0.3


async def test_names_of_classes_are_enough() -> None:
    assert LocalBackend(f"{Ask.__module__}:Ask" if Ask.__module__ in sys.modules else Ask).workflow is Ask
    assert LocalBackend(Ask).max_concurrent == 4
    assert LocalBackend(Ask, AgentWorkflowConfig(name="free")).max_concurrent is None
    with pytest.raises(TypeError, match="not a subclass of AgentWorkflow"):
        LocalBackend("json:loads")
    with pytest.raises(TypeError, match="does not define run"):
        LocalBackend(AgentWorkflow)
    with pytest.raises(TypeError, match="does not name a class"):
        LocalBackend("nonsense")


async def test_output_object_carries_metrics_and_info() -> None:
    async def body(ctx: Any) -> AgentWorkflowOutput:
        return AgentWorkflowOutput(messages=ctx.prompt, metrics={"turns": 2}, info={"note": "x"})

    result = await LocalBackend(workflow(body)).execute(init())
    assert result.sample is not None
    assert (result.sample.metrics, result.info) == ({"turns": 2}, {"note": "x"})
    with pytest.raises(ValueError, match="extra"):
        AgentWorkflowOutput(messages=[], surprise=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("raised", "phase", "category", "word"),
    [
        (RuntimeError("boom"), Phase.AGENT, Category.AGENT_ERROR, "agent_error"),
        (ModelError("slow down", category="rate_limit", status=429), Phase.MODEL, Category.RATE_LIMIT, "http_error"),
        (ModelError("late", category="timeout"), Phase.MODEL, Category.TIMEOUT, "timeout"),
    ],
)
async def test_a_workflow_that_raises(raised: Exception, phase: Phase, category: Category, word: str) -> None:
    async def body(ctx: Any) -> Any:
        raise raised

    result = await LocalBackend(workflow(body), grader=Exact).execute(init())
    assert (result.status, result.err_phase, result.err_category) == ("failure", phase, word)
    assert result.failure is not None
    assert result.failure.category is category
    assert str(raised) in (result.err_message or "")
    assert "body" in (result.traceback or "")
    assert not result.graded


async def test_vendor_errors_are_recognised_by_their_shape() -> None:
    class APIStatusError(Exception):
        status_code = 401

    async def body(ctx: Any) -> Any:
        raise APIStatusError("bad key")

    result = await LocalBackend(workflow(body)).execute(init())
    assert result.failure is not None
    assert (result.failure.phase, result.failure.category) == (Phase.MODEL, Category.AUTH)


@pytest.mark.parametrize("answer", [3, "text", ["text"]])
async def test_results_that_are_none(answer: Any) -> None:
    async def body(ctx: Any) -> Any:
        return answer

    result = await LocalBackend(workflow(body)).execute(init())
    assert "return a list of messages" in (result.err_message or "")


async def test_none_needs_a_registered_conversation() -> None:
    async def nothing(ctx: Any) -> None:
        return None

    class Source:
        async def get_sample(self) -> RolloutSample:
            return RolloutSample(messages=[{"role": "assistant", "content": "4"}])

    async def registered(ctx: Any) -> None:
        found = get_rollout_context()
        assert found is ctx.rollout
        found.set_sample_source(Source())
        with pytest.raises(ValueError, match="already has a sample source"):
            found.set_sample_source(Source())

    empty = await LocalBackend(workflow(nothing)).execute(init())
    assert "no conversation was registered" in (empty.err_message or "")
    result = await LocalBackend(workflow(registered), grader=Exact).execute(init())
    assert result.sample is not None
    assert result.sample.reward == 1.0
    assert get_rollout_context() is None


async def test_a_failed_rollout_still_shows_what_was_said() -> None:
    class Source:
        async def get_sample(self) -> RolloutSample:
            return RolloutSample(messages=[{"role": "assistant", "content": "so far"}])

    async def body(ctx: Any) -> None:
        ctx.rollout.set_sample_source(Source())
        raise RuntimeError("then it broke")

    result = await LocalBackend(workflow(body)).execute(init())
    assert result.sample is not None
    assert result.sample.messages[0]["content"] == "so far"


async def test_agent_deadline_cancels_cooperatively() -> None:
    cleaned = asyncio.Event()

    async def body(ctx: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    result = await LocalBackend(workflow(body)).execute(init(agent_timeout_sec=0.05))
    assert (result.status, result.err_phase, result.err_category) == ("failure", Phase.AGENT, "timeout")
    assert cleaned.is_set()


async def test_code_that_blocks_the_loop_is_reported_as_late() -> None:
    async def body(ctx: Any) -> Any:
        time.sleep(0.4)  # noqa: ASYNC251 - the fault under test
        return ctx.prompt

    result = await LocalBackend(workflow(body)).execute(init(agent_timeout_sec=0.05))
    assert result.err_category == "timeout"


async def test_waiting_for_a_slot_takes_nothing_off_the_budget() -> None:
    release = asyncio.Event()

    async def body(ctx: Any) -> Any:
        if ctx.metadata.get("first"):
            await release.wait()
        return ctx.prompt

    config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
    backend = LocalBackend(workflow(body), config)
    states: list[str] = []
    first = asyncio.create_task(backend.execute(init(metadata={"first": True}), on_state=states.append))
    second = asyncio.create_task(backend.execute(init(rollout_id="r-2", agent_timeout_sec=0.2), on_state=states.append))
    await until(lambda: states == ["queued", "running", "queued"])
    await asyncio.sleep(0.3)
    release.set()
    result = await second
    assert (result.status, (await first).status) == ("success", "success")
    assert result.queue_ms >= 250


async def test_grader_failures_keep_the_sample_and_are_no_zero() -> None:
    async def raises(ctx: Any) -> None:
        ctx.set_reward(0.5)
        raise KeyError("answer")

    async def forgets(ctx: Any) -> None: ...

    async def hangs(ctx: Any) -> None:
        await asyncio.Event().wait()

    async def nan(ctx: Any) -> None:
        ctx.set_reward(float("nan"))

    async def beyond(ctx: Any) -> None:
        ctx.set_reward(1.5)

    refused = "validation_error"
    expected = {raises: "agent_error", forgets: refused, hangs: "timeout", nan: refused, beyond: refused}
    for body, word in expected.items():
        backend = LocalBackend(workflow(_messages), grader=score_function(min=0, max=1)(grader(body)))
        result = await backend.execute(init(grader_timeout_sec=0.1))
        assert (result.status, result.err_phase, result.err_category) == ("failure", Phase.SCORE, word)
        assert result.sample is not None
        assert result.sample.reward is None
        assert not result.graded


@pytest.mark.parametrize(
    ("value", "said"),
    [(float("nan"), "nan"), (float("-inf"), "-inf"), ("high", "str of 4 characters"), ([0.5], "list")],
)
@pytest.mark.parametrize("way", ["set_reward", "assignment"])
async def test_a_reward_that_is_no_finite_number_says_so_plainly(value: Any, said: str, way: str) -> None:
    async def grade(ctx: Any) -> None:
        if way == "set_reward":
            ctx.set_reward(value)
        else:
            ctx.sample.reward = value

    result = await LocalBackend(workflow(_messages), grader=grader(grade)).execute(init())
    assert (result.err_phase, result.err_category) == (Phase.SCORE, "validation_error")
    assert result.failure is not None
    assert result.failure.category is Category.INVALID_SCORE
    assert result.failure.message == f"the reward must be a finite number, got {said}"
    assert "finite" in (result.failure.fix or "")
    assert "in grade" in (result.failure.traceback or "")


async def test_rows_that_cannot_be_graded_say_so() -> None:
    result = await LocalBackend(workflow(_messages), grader=Exact).execute(init(label=None, metadata=None))
    assert "neither a label nor metadata" in (result.err_message or "")
    skipped = await LocalBackend(workflow(_messages), grader=Exact).execute(init(grade=False))
    assert skipped.status == "success"
    assert skipped.sample is not None
    assert skipped.sample.reward is None


async def test_removed_samples_need_no_reward() -> None:
    async def body(ctx: Any) -> None:
        ctx.sample.remove_sample = True

    result = await LocalBackend(workflow(_messages), grader=grader(body)).execute(init())
    assert result.status == "success"
    assert result.sample is not None
    assert result.sample.to_wire().reward is None


async def test_cancellation_of_the_caller_passes_through() -> None:
    started = asyncio.Event()

    async def body(ctx: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    backend = LocalBackend(workflow(body))
    task = asyncio.create_task(backend.execute(init()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_code_that_cancels_itself_is_a_result() -> None:
    async def body(ctx: Any) -> None:
        raise asyncio.CancelledError

    assert (await LocalBackend(workflow(body)).execute(init())).status == "cancelled"


async def test_artifacts_folder_exists_only_when_used(tmp_path: Any) -> None:
    async def body(ctx: Any) -> Any:
        if ctx.metadata.get("write"):
            (ctx.artifacts_dir / "a.txt").write_text("x")
        return ctx.prompt

    backend = LocalBackend(workflow(body), environ={"_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(tmp_path)})
    await backend.execute(init())
    assert list(tmp_path.iterdir()) == []
    await backend.execute(init(metadata={"write": True}))
    assert (tmp_path / "r-1" / "artifacts" / "a.txt").is_file()


def test_a_backend_serves_one_loop_after_another() -> None:
    config = AgentWorkflowConfig(name="one", concurrency=ConcurrencyConfig(max_concurrent=1))
    backend = LocalBackend(workflow(_messages), config)

    async def both() -> list[str]:
        return [one.status for one in await asyncio.gather(*(backend.execute(init()) for _ in range(3)))]

    assert asyncio.run(both()) == asyncio.run(both()) == ["success"] * 3


def test_samples_refuse_what_is_no_number_and_copy_their_messages() -> None:
    sample = RolloutSample(messages=[{"role": "user", "content": "a"}])
    sample.messages[0]["content"] = "changed"
    assert sample.trajectory_messages == [{"role": "user", "content": "a"}]
    assert RolloutSample(messages=[], trajectory_messages=None).trajectory_messages is None
    with pytest.raises(ValueError, match="finite"):
        sample.reward = float("inf")
    sample.reward = True  # type: ignore[assignment]
    assert sample.reward == 1.0
    sample.metrics = {"bad": float("nan"), "set": {1}, "object": object(), "good": 2}
    assert sample.to_wire().metrics == {"set": [1], "good": 2}


def test_graders_of_earlier_versions_find_their_sample() -> None:
    context = GraderContext(label="x", sample=RolloutSample(messages=[]), rollout_id="r")
    assert list(context.get_samples()) == ["r"]
    context.set_sample_reward("r", 0.5)
    assert context.sample is not None
    assert context.sample.reward == 0.5
    with pytest.raises(KeyError):
        context.set_sample_reward("other", 1.0)
    with pytest.raises(ValueError, match="no sample"):
        GraderContext().set_reward(1.0)


def test_rollouts_in_other_processes_learn_their_endpoint_from_the_environment() -> None:
    environ = {"OSMOSIS_CHAT_COMPLETIONS_URL": "http://h/1", "OSMOSIS_API_KEY": "k", "OSMOSIS_ROLLOUT_ID": "id"}
    rollout = WorkflowRollout(environ=environ)
    assert (rollout.chat_completions_url, rollout.api_key, rollout.rollout_id) == ("http://h/1", "k", "id")
    with pytest.raises(ValueError, match="no model endpoint"):
        WorkflowRollout(environ={}).chat()
