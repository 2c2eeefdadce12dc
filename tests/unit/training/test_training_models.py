"""A trained model as an evaluation asks it: over the real connection, sampled by a stand-in."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Piece
from osmosis.records.run.plan import ModelSpec
from osmosis.training.models import ServedModel
from osmosis.training.protocol.client import TrainerClient
from osmosis.training.protocol.messages import SampledAnswer, SampleDelta, SampleRequest
from osmosis.training.trainer.service import TrainerService

QUESTION = [{"role": "user", "content": "17+25"}]


class Sampler:
    """Answers 42, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[SampleRequest] = []

    async def stream(self, request: SampleRequest) -> AsyncGenerator[SampleDelta | SampledAnswer, None]:
        self.asked.append(request)
        if request.stream:
            yield SampleDelta(content="4")
        yield SampledAnswer(
            prompt_ids=[1, 2, 3], token_ids=[4, 2], logprobs=[-0.5, -0.25], content="42", finish_reason="stop",
            parse="content",
        )  # fmt: skip


async def test_the_question_decides_how_it_is_sampled(tmp_path: Path) -> None:
    spec = ModelSpec.parse("osmosis/multiply-1", params={"temperature": 0.2, "seed": 7})
    assert spec.kind == "trained"
    sampler = Sampler()
    with TrainerService("x", tmp_path / "s.sock") as service:
        service.sampler = sampler
        async with TrainerClient(tmp_path / "s.sock") as link:
            model = ServedModel(link, spec)
            pieces: list[Piece] = []
            request = ChatRequest(
                QUESTION, params={"top_p": 0.9, "max_completion_tokens": 5, "stop": "x"}, rollout_id="r", attempt=2,
                on_piece=pieces.append,
            )  # fmt: skip
            answer = await model.complete(request)
            await model.complete(ChatRequest(QUESTION, params={"temperature": 1.0}))
    assert (answer.message["content"], answer.token_ids, answer.finish_reason) == ("42", [4, 2], "stop")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
    assert [piece.delta for piece in pieces] == [{"content": "4"}]
    first, second = sampler.asked
    assert (first.temperature, first.top_p, first.max_tokens, first.stop, first.stream) == (0.2, 0.9, 5, ["x"], True)
    assert first.seed == 9, "each attempt samples anew"
    assert (second.temperature, second.stream) == (1.0, False)
    assert first.id != second.id


async def test_parameters_that_no_answer_can_have_are_the_rollouts_fault(tmp_path: Path) -> None:
    with TrainerService("x", tmp_path / "s.sock") as service:
        service.sampler = Sampler()
        async with TrainerClient(tmp_path / "s.sock") as link:
            model = ServedModel(link, ModelSpec.parse("osmosis/x"))
            with pytest.raises(ModelError) as refused:
                await model.complete(ChatRequest(QUESTION, params={"temperature": 9}))
    assert refused.value.category == "bad_request"


def test_an_endpoint_of_ones_own_may_use_the_same_names() -> None:
    assert ModelSpec.parse("osmosis/x", base_url="http://127.0.0.1:8000/v1").kind == "openai"
