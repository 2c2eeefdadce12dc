"""A job goes by what the platform says of the others: what they have spent, and that their endpoint wants a pause."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from osmosis.base.json_types import JsonObject
from osmosis.records.rollout import Category
from osmosis.records.run_status import RunStatus
from osmosis.testing.endpoint import ModelEndpoint, Reply, text_reply

from .conftest import Desk, with_before


def ask(desk: Desk, endpoint: ModelEndpoint, **evaluation: object) -> None:
    desk.config = {
        "experiment": {"model_path": "gpt-4o-mini"},
        "advanced": {"base_url": endpoint.url},
        "evaluation": evaluation,
    }


async def test_the_budget_counts_what_other_shards_have_spent(desk: Desk) -> None:
    with ModelEndpoint(lambda body, number: text_reply("#### 1", prompt_tokens=100, completion_tokens=0)) as endpoint:
        ask(desk, endpoint, max_tokens_total=10_000, batch_size=2)
        desk.api.heartbeat_reply = {"stop": False, "elsewhere": {"tokens": 9_750}}
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.status is RunStatus.STOPPED, desk.log
    assert desk.result.failure is not None
    assert desk.result.failure.category is Category.BUDGET
    assert "of 10000 tokens used" in desk.result.failure.message
    # Three rollouts spend what was left; one more may have been in flight.
    assert 3 <= len(desk.keys) <= 4
    assert desk.result.report is not None
    assert desk.result.report.completed == len(desk.keys)


async def test_a_budget_in_money_needs_a_price(desk: Desk) -> None:
    with ModelEndpoint() as endpoint:
        ask(desk, endpoint, max_cost=1.0)
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.failure is not None
    assert "the price of gpt-4o-mini is unknown, so [evaluation].max_cost cannot be kept" in desk.result.failure.message
    assert "max_tokens_total" in str(desk.result.failure.fix)
    assert desk.keys == []


async def test_a_refusal_is_told_and_one_that_others_met_is_waited_for(desk: Desk) -> None:
    """The endpoint refuses the second question for 3 s; before that the platform asks for 2 s of silence."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    def decide(_: JsonObject, number: int) -> Reply | None:
        asked.append(loop.time())
        if number == 1:
            desk.api.heartbeat_reply = None
            return Reply({"error": {"message": "slow down"}}, status=429, headers={"retry-after": "3"})
        return text_reply("#### 1")

    desk.api.heartbeat_reply = {"stop": False, "pause_s": 2.0}
    with ModelEndpoint(decide) as endpoint:
        ask(desk, endpoint, batch_size=1)
        assert await desk.run(desk.write(desk.commit(main=with_before("pass")))) == 0
    assert desk.result.status is RunStatus.FINISHED, desk.log
    assert desk.keys == desk.owed
    told = [beat.pause_s for beat in desk.api.heartbeats if beat.pause_s]
    assert told, "the platform was told of the refusal"
    assert max(told) <= 3
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert gaps[1] >= 3, "nothing is asked while the endpoint wants no calls"
