"""An answer in pieces: what they add up to, that they come while the endpoint still writes, and what goes wrong."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from osmosis.dialects.chat import completion_body
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Completion, Piece, open_model
from osmosis.llm.openai_compatible import completion_of
from osmosis.llm.streaming import StreamedBody
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Usage
from support.dialect_clients import completion_events
from support.endpoint import ModelEndpoint, Reply
from support.waiting import until

QUICK = Retry(max_attempts=3, base_delay_s=0.001, max_delay_s=0.002, rate_limit_budget_s=5)
ASK = [{"role": "user", "content": "What is 2 * 3?"}]
CALLS = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "multiply", "arguments": f'{{"a": {i}, "é": 1}}'}}
    for i in range(2)
]
ANSWER = Completion(
    {"role": "assistant", "content": "säys " * 100, "reasoning_content": "hm", "tool_calls": CALLS, "refusal": None},
    "tool_calls",
    Usage(prompt_tokens=5, completion_tokens=9, cached_tokens=2),
    model="m-2",
    token_ids=[4, 5],
    logprobs=[-0.5, -1.0],
    prompt_token_ids=[1],
    raw_id="c-1",
)


def chunk(delta: dict[str, object], finish: str | None = None, **more: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return b"data: " + orjson.dumps({"id": "c", "model": "m", "choices": [choice]}) + b"\n\n"


def told_of(parts: list[bytes]) -> tuple[StreamedBody, list[Piece]]:
    told: list[Piece] = []
    stream = StreamedBody(told.append)
    for part in parts:
        stream.feed(part)
    return stream, told


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_a_stream_adds_up_to_the_answer_however_it_is_cut(step: int) -> None:
    sent = b": a comment\r\n\r\n" + b"".join(completion_events(ANSWER, model="x", with_usage=True))
    stream, told = told_of([sent[start : start + step] for start in range(0, len(sent), step)])
    whole = completion_of(completion_body(ANSWER), model="x")
    assert completion_of(stream.body(), model="x") == whole
    assert "".join(piece.delta.get("content", "") for piece in told) == ANSWER.message["content"]


def test_logprobs_and_ids_of_chunks_are_joined() -> None:
    parts = [
        chunk({"content": "a"}, logprobs={"content": [{"token": "a", "logprob": -0.25}]}, token_ids=[7]),
        chunk({"content": "b"}, logprobs={"content": [{"token": "b", "logprob": -0.5}]}, token_ids=[8]),
        chunk({}, "length"),
        chunk({}, "length"),  # some say it twice
    ]
    stream, told = told_of(parts)
    done = completion_of(stream.body(), model="m")
    assert (done.token_ids, done.logprobs, done.finish_reason) == ([7, 8], [-0.25, -0.5], "length")
    assert [piece.logprobs and piece.logprobs["content"][0]["token"] for piece in told] == ["a", "b"]


def test_tool_calls_without_numbers_are_told_apart_by_their_ids() -> None:
    def fragment(text: str, call_id: str | None = None) -> bytes:
        function = {"arguments": text, **({"name": "f"} if call_id else {})}
        return chunk({"tool_calls": [{"id": call_id, "function": function}]})

    stream, _ = told_of([fragment('{"a"', "one"), fragment(": 1}"), fragment("{}", "two"), chunk({}, "tool_calls")])
    calls = completion_of(stream.body(), model="m").message["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("one", '{"a": 1}'), ("two", "{}")]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([chunk({"content": "a"})], "stopped before the answer was complete"),
        ([b"data: {\n\n"], "no chat completion"),
        ([chunk({"content": "a"}), b'data: {"error": {"message": "out of memory"}}\n\n'], "out of memory"),
    ],
)
def test_a_stream_that_breaks_off_is_no_answer(parts: list[bytes], said: str) -> None:
    stream, _ = told_of(parts)
    with pytest.raises(ModelError, match=said):
        stream.body()


async def ask(endpoint: ModelEndpoint, told: list[Piece], times: int = 1) -> Completion:
    model = open_model(ModelSpec.parse("m", base_url=endpoint.url), retry=QUICK, timeout_s=30)
    try:
        for _ in range(times):
            done = await model.complete(ChatRequest(ASK, on_piece=told.append))
        return done
    finally:
        await model.close()


async def test_an_endpoint_is_asked_to_stream_and_its_pieces_are_told_at_once() -> None:
    told: list[Piece] = []
    with ModelEndpoint(
        lambda body, n: Reply(parts=[chunk({"content": "so "}), chunk({"content": "far"})], hang=True)
    ) as e:
        asking = asyncio.create_task(ask(e, told))
        await until(lambda: len(told) == 2)  # the endpoint has not finished, and never will
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert e.requests[0]["stream"] is True
    assert e.requests[0]["stream_options"] == {"include_usage": True}


async def test_a_streamed_answer_is_the_plain_answer() -> None:
    def decide(body: dict, n: int) -> Reply:
        if body.get("stream"):
            return Reply(parts=list(completion_events(ANSWER, model="m-2", with_usage=True)))
        return Reply(completion_body(ANSWER))

    with ModelEndpoint(decide) as endpoint:
        streamed = await ask(endpoint, [])
        model = open_model(ModelSpec.parse("m", base_url=endpoint.url), retry=QUICK)
        plain = await model.complete(ChatRequest(ASK))
        await model.close()
    assert streamed == plain
    assert "stream" not in endpoint.requests[1]


async def test_an_endpoint_that_cannot_stream_is_asked_for_the_whole_from_then_on() -> None:
    def decide(body: dict, n: int) -> Reply:
        if "stream_options" in body:
            return Reply({"error": {"message": "unknown parameter: stream_options"}}, status=400)
        return Reply(completion_body(ANSWER))

    told: list[Piece] = []
    with ModelEndpoint(decide) as endpoint:
        done = await ask(endpoint, told, times=2)
    assert done.message["content"] == ANSWER.message["content"]
    assert ["stream" in body for body in endpoint.requests] == [True, False, False]
    assert told == []


async def test_an_endpoint_that_ignores_the_wish_to_stream_is_read_all_the_same() -> None:
    with ModelEndpoint(lambda body, n: Reply(completion_body(ANSWER))) as endpoint:
        assert (await ask(endpoint, [])).usage.completion_tokens == 9


async def test_a_call_is_repeated_only_while_nobody_has_heard_of_its_answer() -> None:
    def decide(body: dict, n: int) -> Reply:
        return Reply(parts=[] if n == 0 else [chunk({"content": "half"})], cut=True)

    told: list[Piece] = []
    with ModelEndpoint(decide) as endpoint:
        with pytest.raises(ModelError):
            await ask(endpoint, told)
        assert len(endpoint.requests) == 2
    assert len(told) == 1
