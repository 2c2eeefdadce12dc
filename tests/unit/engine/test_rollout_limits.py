"""A limit ends one rollout, which is then scored as far as it came; the time limit of the agent still fails it."""

import asyncio
from pathlib import Path

import pytest

from osmosis.engine.evaluate import Evaluation
from osmosis.engine.journal import Journal
from osmosis.engine.load_agent import load_agent
from osmosis.engine.provenance import plan_hashes
from osmosis.llm import open_model
from osmosis.records.run.plan import ModelSpec, RolloutLimits, Timeouts
from osmosis.records.run.rollout import RolloutStatus
from osmosis.serve.client.model_proxy import ModelProxy
from support.endpoint import ModelEndpoint, text_reply

HERE = Path(__file__).parent
CALLS = RolloutLimits(max_turns=3)


async def go(run, make_plan, make_rows, tmp_path, agent, limits, **more):
    """The only rollout and the endpoint's number of calls."""
    asked = 0

    def decide(body, number):
        nonlocal asked
        asked += "What is" in str(body["messages"][0])
        return text_reply("#### 0", prompt_tokens=10, completion_tokens=5)

    journal = Journal(tmp_path / "j")
    with ModelEndpoint(decide) as endpoint:
        model = ModelSpec.parse("m", base_url=endpoint.url, params={})
        model.price = (1000.0, 1000.0)
        plan = make_plan(agent=f"helpers_agents:{agent}", model=model, limits=limits, **more)
        work = run(plan, make_rows(1), journal=journal, scores=more.pop("scores", ("exact",)))
        await asyncio.wait_for(work, 40)
    (rollout,) = Journal(tmp_path / "j").rollouts()
    return rollout, asked


@pytest.mark.parametrize("agent", ["endless", "Endless"])
@pytest.mark.parametrize(
    ("limits", "reason", "calls"),
    [
        ({"max_turns": 3}, "max_turns", 3),
        ({"max_messages": 4}, "max_messages", 2),
        ({"max_tokens": 40}, "max_tokens", 3),
        ({"max_cost_usd": 0.02}, "max_cost", 2),
    ],
)
async def test_the_call_beyond_a_limit_is_not_made(run, make_plan, make_rows, tmp_path, agent, limits, reason, calls):
    rollout, asked = await go(run, make_plan, make_rows, tmp_path, agent, RolloutLimits(**limits))
    assert (rollout.status, rollout.failure, rollout.finish_reason) == (RolloutStatus.SUCCESS, None, reason)
    assert asked == len(rollout.calls) == calls
    assert rollout.scores["helpers_agents:exact"].value == 1.0
    assert [m["role"] for m in rollout.messages[:3]] == ["user", "assistant", "user"]
    if agent == "Endless":
        assert rollout.scores["reward"].value == 0.0, "the grader has graded what there was: it ends with a question"


async def test_the_time_that_ends_and_scores_and_the_time_that_fails(run, make_plan, make_rows, tmp_path):
    rollout, _ = await go(run, make_plan, make_rows, tmp_path / "a", "ponders", RolloutLimits(max_time_s=0.3))
    assert (rollout.status, rollout.finish_reason) == (RolloutStatus.SUCCESS, "max_time")
    assert rollout.scores["helpers_agents:exact"].value == 1.0
    limits = {"limits": RolloutLimits(max_time_s=9.0), "timeouts": Timeouts(agent_s=0.3)}
    failed, _ = await go(run, make_plan, make_rows, tmp_path / "b", "ponders", **limits)
    assert failed.status is RolloutStatus.FAILED


async def test_an_agent_that_swallows_the_limit_is_cancelled_and_asks_no_more(run, make_plan, make_rows, tmp_path):
    rollout, asked = await go(run, make_plan, make_rows, tmp_path, "stubborn", CALLS)
    assert (rollout.finish_reason, asked) == ("max_turns", 3)


@pytest.mark.parametrize(
    ("limits", "reason", "calls"),
    [(RolloutLimits(max_turns=4), "max_turns", 4), (RolloutLimits(max_tokens=100), "max_tokens", 7)],
)
async def test_limits_hold_for_calls_at_once(run, make_plan, make_rows, tmp_path, limits, reason, calls):
    rollout, asked = await go(run, make_plan, make_rows, tmp_path, "crowd", limits)
    assert (rollout.status, rollout.finish_reason) == (RolloutStatus.SUCCESS, reason)
    assert asked == len(rollout.calls) == calls


async def test_calls_over_http_are_refused_beyond_the_limit(make_plan, make_rows, tmp_path):
    rows = make_rows(1)
    with ModelEndpoint(lambda body, number: text_reply("#### 0")) as endpoint:
        plan = make_plan(model=ModelSpec.parse("m", base_url=endpoint.url), limits=CALLS)
        model = open_model(plan.model)
        gate = ModelProxy(model)
        await gate.open()
        try:
            agent = load_agent("helpers_agents:OverHttp", HERE)
            journal = Journal(tmp_path / "j")
            await Evaluation(plan, rows, agent.bind(plan, endpoints=gate), model=model, journal=journal).run()
        finally:
            await gate.close()
            await model.close()
    (rollout,) = Journal(tmp_path / "j").rollouts()
    assert (rollout.status, rollout.finish_reason) == (RolloutStatus.SUCCESS, "max_turns")
    assert len(rollout.calls) == 3


def test_limits_are_part_of_what_a_result_depends_on(make_plan):
    plain, limited = make_plan(), make_plan(limits=CALLS)
    here = {"agent_files": [], "base_dir": HERE}
    assert plan_hashes(plain, **here)["agent"] != plan_hashes(limited, **here)["agent"]


@pytest.mark.parametrize(
    ("kind", "before", "base_url"),
    [("messages", "litellm", None), ("responses", "litellm", None), ("responses", "openai", "http://gate/v1")],
)
def test_a_run_begun_when_its_model_was_asked_otherwise_is_resumed(make_plan, kind, before, base_url):
    models = [ModelSpec(name="anthropic/x", kind=each, base_url=base_url) for each in (kind, before)]
    hashes = [plan_hashes(make_plan(model=model), agent_files=[], base_dir=HERE) for model in models]
    assert hashes[0]["sampling"] == hashes[1]["sampling"]
