"""The served driver against the real server, both generations of `POST /rollout`."""

import asyncio
import json
from pathlib import Path

import pytest

from osmosis.engine.rollout_model import RolloutModel
from osmosis.errors import ModelError, NetworkError
from osmosis.records.run.plan import RolloutLimits, Timeouts
from osmosis.records.run.rollout import Category, Message, Phase, Rollout, RolloutStatus
from osmosis.sdk.types import AgentWorkflowConfig
from osmosis.sdk.workflow import AgentWorkflow, AgentWorkflowContext
from osmosis.serve.client.protocols import generation_of
from osmosis.serve.client.remote import ServerAt, served
from osmosis.serve.server.queue import ServeLimits
from support.attempts import run_attempt
from support.server import running_app
from support.waiting import until

from .support import (
    BrokenGrader,
    Crashes,
    Exact,
    Explains,
    Hangs,
    NotANumber,
    OneCall,
    ScriptedModel,
    backend,
    fail,
    open_proxy,
    plan,
    say,
    server,
    task,
)

BOTH = pytest.mark.parametrize("generation", ["0.3", "0.4"])


async def one(
    tmp_path: Path,
    generation: str,
    workflow: type,
    *,
    model: ScriptedModel | None = None,
    grader: type = Exact,
    api_key: str | None = None,
    **planned: object,
) -> Rollout:
    # The gate is gone before the server: what it was still to be told of a rollout given up is nobody's news.
    limits = ServeLimits(delivery_drain_s=0.1)
    app = server(backend(workflow, grader, root=tmp_path), tmp_path, api_key=api_key, limits=limits)
    async with (
        running_app(app) as url,
        open_proxy(model or ScriptedModel()) as gate,
        served(ServerAt(url, api_key=api_key, generation=generation), gate, plan(**planned)) as agent,
    ):
        return await run_attempt(agent, gate.model, plan(**planned), task())


class AsksForEver(AgentWorkflow[AgentWorkflowConfig]):
    """Calls the model until it is refused, and keeps what was said."""

    async def run(self, ctx: AgentWorkflowContext[AgentWorkflowConfig]) -> list[Message]:
        messages = list(ctx.prompt)
        async with ctx.chat(max_attempts=1) as chat:
            for _ in range(20):
                try:
                    messages.append((await chat.complete(messages)).message)
                except ModelError:
                    break
        return messages


@BOTH
@pytest.mark.parametrize(
    ("limits", "reason", "calls"),
    [
        (RolloutLimits(max_turns=3), "max_turns", 3),
        (RolloutLimits(max_tokens=25), "max_tokens", 3),
        (RolloutLimits(max_messages=4), "max_messages", 3),
    ],
    ids=["turns", "tokens", "messages"],
)
async def test_a_limit_ends_a_rollout_of_a_server_and_it_is_scored(
    tmp_path: Path, generation: str, limits: RolloutLimits, reason: str, calls: int
) -> None:
    model = ScriptedModel()
    rollout = await one(tmp_path, generation, AsksForEver, model=model, limits=limits)
    assert rollout.finish_reason == reason
    assert rollout.failure is None
    assert rollout.value("reward") == 1.0, "what it had so far was graded"
    assert len(model.requests) == calls


@BOTH
async def test_a_graders_reason_comes_with_its_reward(tmp_path: Path, generation: str) -> None:
    score = (await one(tmp_path, generation, OneCall, grader=Explains)).scores["reward"]
    assert (score.value, score.reason) == (0.75, "right, but rude")
    assert score.parts == {"right": 1.0, "polite": 0.5}


@BOTH
async def test_a_rollout_comes_back_whole(tmp_path: Path, generation: str) -> None:
    model = ScriptedModel()
    rollout = await one(tmp_path, generation, OneCall, model=model)
    assert rollout.status is RolloutStatus.SUCCESS
    assert rollout.value("reward") == 1.0
    assert [message["role"] for message in rollout.messages] == ["system", "user", "assistant"]
    assert rollout.usage.total_tokens == 10
    assert len(rollout.calls) == 1
    assert rollout.calls[0].model == "scripted/model"
    assert rollout.metrics["turns"] == 1.0
    assert rollout.info["note"] == "done"
    assert model.requests[0].params == {"temperature": 0.5}
    assert model.requests[0].rollout_id == "test-0-0"


@BOTH
async def test_a_crash_is_data_with_phase_category_and_traceback(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, Crashes)
    assert rollout.status is RolloutStatus.FAILED
    assert (rollout.failure.phase, rollout.failure.category) == (Phase.AGENT, Category.AGENT_ERROR)
    assert "burned down" in rollout.failure.message
    assert "Crashes" in (rollout.failure.traceback or "") or "run" in (rollout.failure.traceback or "")


@BOTH
async def test_a_broken_grader_fails_the_score_not_the_rollout(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, OneCall, grader=BrokenGrader)
    assert rollout.status is RolloutStatus.SUCCESS
    failure = rollout.scores["reward"].failure
    assert failure.phase is Phase.SCORE
    assert "torn" in failure.message
    assert rollout.messages[-1]["content"] == "42"


@BOTH
async def test_a_reward_of_nan_is_an_invalid_score_on_this_side_too(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, OneCall, grader=NotANumber)
    assert rollout.status is RolloutStatus.SUCCESS
    failure = rollout.scores["reward"].failure
    assert (failure.phase, failure.category) == (Phase.SCORE, Category.INVALID_SCORE)
    assert failure.message == "the reward must be a finite number, got nan"
    assert failure.fix


@BOTH
async def test_the_models_own_failure_is_named(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, OneCall, model=ScriptedModel(fail("rate_limit")))
    assert (rollout.failure.phase, rollout.failure.category) == (Phase.MODEL, Category.RATE_LIMIT)
    assert rollout.calls[0].error is not None


@BOTH
async def test_a_hanging_agent_ends_at_its_own_limit(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, Hangs, timeouts=Timeouts(agent_s=0.2, score_s=5))
    assert rollout.failure.category is Category.TIMEOUT


@BOTH
async def test_the_servers_key_is_used_and_wanted(tmp_path: Path, generation: str) -> None:
    rollout = await one(tmp_path, generation, OneCall, api_key="k-1")
    assert rollout.status is RolloutStatus.SUCCESS

    app = server(backend(OneCall, root=tmp_path), tmp_path, api_key="k-1")
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel()) as gate,
        served(ServerAt(url, api_key="other", generation=generation), gate, plan()) as agent,
    ):
        refused = await run_attempt(agent, gate.model, plan(), task())
    assert refused.failure is not None
    assert (refused.failure.phase, refused.failure.category) == (Phase.SETUP, Category.AUTH)


async def test_our_server_is_polled_by_default_and_more_rollouts_than_slots_all_end(tmp_path: Path) -> None:
    app = server(backend(OneCall, root=tmp_path, limit=2), tmp_path)
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel(lambda request: say("42" if request.row_index % 2 else "41"))) as gate,
        served(ServerAt(url), gate, plan()) as agent,
    ):
        rollouts = await asyncio.gather(*(run_attempt(agent, gate.model, plan(), task(index)) for index in range(20)))
    assert [rollout.value("reward") for rollout in rollouts] == [0.0, 1.0] * 10
    assert all(rollout.row_index == index for index, rollout in enumerate(rollouts))


async def test_cancelling_the_caller_cancels_on_the_server(tmp_path: Path) -> None:
    app = server(backend(Hangs, root=tmp_path), tmp_path)
    async with running_app(app) as url, open_proxy(ScriptedModel()) as gate:
        async with served(ServerAt(url), gate, plan()) as agent:
            running = asyncio.create_task(agent.run(task(), RolloutModel(gate.model, task())))
            await until(lambda: app.state.runtime.queue.active == 1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert app.state.runtime.queue.active == 0
        assert app.state.rollouts.state("test-0-0").status == "cancelled"


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({"status": "healthy", "agent_loop": "a", "active_rollouts": 0, "completed_rollouts": 0}, ("0.2", None)),
        ({"status": "healthy", "concurrency": {"max_concurrent": 4}, "instance_id": None}, ("0.3", 4)),
        ({"status": "healthy", "process_id": 7, "lifecycle": {"accepting_rollouts": True}}, ("0.4", None)),
    ],
)
def test_the_generation_is_known_by_the_health(health: dict[str, object], expected: tuple[str, int | None]) -> None:
    assert generation_of(json.dumps(health).encode()) == expected


@BOTH
async def test_what_the_server_cannot_run_yet_waits_here_and_not_on_its_clock(tmp_path: Path, generation: str) -> None:
    app = server(backend(OneCall, root=tmp_path, limit=1), tmp_path)
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel()) as gate,
        served(ServerAt(url, generation=generation), gate, plan()) as agent,
    ):
        queue = app.state.runtime.queue
        running = asyncio.gather(*(run_attempt(agent, gate.model, plan(), task(index)) for index in range(6)))
        most = 0
        while not running.done():
            most = max(most, queue.active)
            await asyncio.sleep(0)
        assert [rollout.failure for rollout in await running] == [None] * 6
    assert queue.finished == 6
    assert most == 1


@BOTH
async def test_a_dead_server_ends_waiting_at_once(tmp_path: Path, generation: str) -> None:
    gone = asyncio.Event()

    async def died() -> int:
        await gone.wait()
        return 137

    app = server(backend(Hangs, root=tmp_path), tmp_path, limits=ServeLimits(drain_s=0.1, delivery_drain_s=0.1))
    async with (
        running_app(app) as url,
        open_proxy(ScriptedModel()) as gate,
        served(ServerAt(url, generation=generation), gate, plan(), died=died) as agent,
    ):
        waiting = [asyncio.create_task(run_attempt(agent, gate.model, plan(), task(index))) for index in range(3)]
        await until(lambda: app.state.runtime.queue.active == 3)
        gone.set()
        rollouts = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        after = await run_attempt(agent, gate.model, plan(), task(9))
    for rollout in [*rollouts, after]:
        assert (rollout.failure.phase, rollout.failure.category) == (Phase.SETUP, Category.SERVER_DIED)
        assert "137" in rollout.failure.message


async def test_no_server_is_one_clear_error() -> None:
    async with open_proxy(ScriptedModel()) as gate:
        with pytest.raises(NetworkError, match="no rollout server answers"):
            async with served(ServerAt("http://127.0.0.1:9"), gate, plan()):
                raise AssertionError
