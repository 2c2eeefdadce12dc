"""Anthropic's Messages and OpenAI's Responses, asked by our client; the server checks requests by their packages."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import pytest

from osmosis.dialects import MESSAGES, RESPONSES, Call, Dialect, Envelope
from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Completion, open_model, probe
from osmosis.llm.dialect_model import DialectModel
from osmosis.llm.model import Piece
from osmosis.llm.providers import table_price
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Category, Usage
from support.endpoint import Decide, ModelEndpoint, Reply
from support.official_types import check_event, check_request

Json = dict[str, Any]
KEY = "the-secret-key-1"
CLAUDE, GPT = "anthropic/claude-sonnet-4-5", "openai/responses/gpt-5"
BOTH = pytest.mark.parametrize(
    ("name", "dialect"), [(CLAUDE, MESSAGES), (GPT, RESPONSES)], ids=["messages", "responses"]
)
TOOL = {"type": "function", "function": {"name": "add", "description": "d", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "What is 2 + 3?"}
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a":2,"b":3}'}}
USAGE = Usage(prompt_tokens=1000, completion_tokens=50, cached_tokens=400, cache_write_tokens=300, reasoning_tokens=20)


def completion(finish: str = "stop", **message: Any) -> Completion:
    return Completion({"role": "assistant", "content": None, **message}, finish, USAGE)


def answer(dialect: Dialect, done: Completion, body: Json) -> Reply:
    """The reply to a request, as the provider would write it, with `signed` in the place of a signature."""
    check_request(dialect, body)
    call, envelope = Call([]), Envelope("m", handle="signed")
    if not body.get("stream"):
        return Reply(dialect.render(call, done, envelope))
    stream = dialect.stream(call, envelope)
    return Reply(parts=[stream.begin(), stream.finish(done)])


def opened(name: str, endpoint: ModelEndpoint | None = None, **options: Any) -> DialectModel:
    base_url = options.pop("base_url", None)
    if endpoint is not None:
        base_url = endpoint.url.removesuffix("/v1") if name == CLAUDE else endpoint.url
    spec = ModelSpec.parse(name, base_url=base_url, params=options.pop("params", {}))
    retry = Retry(max_attempts=2, base_delay_s=0.001, max_delay_s=0.002)
    model = open_model(spec, **{"api_key": KEY, "retry": retry, "timeout_s": 20, **options})
    assert isinstance(model, DialectModel)
    return model


async def ask(name: str, endpoint: ModelEndpoint, request: ChatRequest, **options: Any) -> Completion:
    model = opened(name, endpoint, **options)
    try:
        return await model.complete(request)
    finally:
        await model.close()


@BOTH
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_reasoning_is_kept_over_turns(name: str, dialect: Dialect, streamed: bool) -> None:
    """The second call brings the thoughts of the first back, signed or encrypted as they came."""
    first = completion("tool_calls", reasoning_content="Add them.", content="Let me see.", tool_calls=[CALL])
    replies = [first, completion(content="5")]
    pieces: list[Piece] = []
    listener = pieces.append if streamed else None
    with ModelEndpoint(lambda body, n: answer(dialect, replies[n], body)) as endpoint:
        model = opened(name, endpoint, params={"max_tokens": 500})
        done = await model.complete(ChatRequest([USER], [TOOL], on_piece=listener))
        result = {"role": "tool", "tool_call_id": done.message["tool_calls"][0]["id"], "content": "5"}
        last = await model.complete(ChatRequest([USER, done.message, result], [TOOL]))
        await model.close()
    assert (done.message["content"], done.message["reasoning_content"]) == ("Let me see.", "Add them.")
    assert done.message["tool_calls"][0]["function"] == CALL["function"]
    assert (done.finish_reason, last.message["content"], last.finish_reason) == ("tool_calls", "5", "stop")
    assert (done.usage.prompt_tokens, done.usage.cached_tokens, done.usage.cache_write_tokens) == (1000, 400, 300)
    assert (done.usage.completion_tokens, done.usage.reasoning_tokens) == (50, 20)
    assert bool(pieces) == streamed == endpoint.requests[0].get("stream", False)
    second = endpoint.requests[1]
    if dialect is MESSAGES:
        thinking, text, tool_use = second["messages"][1]["content"]
        assert thinking == {"type": "thinking", "thinking": "Add them.", "signature": "signed"}
        assert (text["text"], tool_use["input"]) == ("Let me see.", {"a": 2, "b": 3})
        assert endpoint.paths == ["/v1/messages"] * 2
        assert endpoint.headers[0]["x-api-key"] == KEY
        assert endpoint.headers[0]["anthropic-version"]
    else:
        reasoning = next(item for item in second["input"] if item["type"] == "reasoning")
        assert (reasoning["encrypted_content"], second["store"]) == ("signed", False)
        assert second["include"] == ["reasoning.encrypted_content"]
        assert endpoint.paths == ["/v1/responses"] * 2
        assert endpoint.headers[0]["Authorization"] == f"Bearer {KEY}"


async def test_an_agents_prefix_is_marked_for_the_cache() -> None:
    def decide(body: Json, number: int) -> Reply:
        return answer(MESSAGES, completion(content="x"), body)

    mark = {"type": "ephemeral"}
    system = {"role": "system", "content": "Be brief."}
    turns = [USER, {"role": "assistant", "content": "4?"}, {"role": "user", "content": "No."}]
    own = [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {**mark, "ttl": "1h"}}]}]
    with ModelEndpoint(decide) as endpoint:
        await ask(CLAUDE, endpoint, ChatRequest([system, USER]))
        await ask(CLAUDE, endpoint, ChatRequest([system, *turns], [TOOL]))
        await ask(CLAUDE, endpoint, ChatRequest(own, [TOOL]))
        await ask(CLAUDE, endpoint, ChatRequest([system, *turns], [TOOL]), params={"cache_control": False})
    single, agent, marked, unmarked = endpoint.requests
    assert single["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert single["messages"] == [{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]
    assert agent["system"][0]["cache_control"] == mark
    assert agent["messages"][-1]["content"] == [{"type": "text", "text": "No.", "cache_control": mark}]
    assert b"cache_control" not in orjson.dumps(agent["messages"][:-1])
    assert orjson.dumps(marked).count(b"cache_control") == 1
    assert b"cache_control" not in orjson.dumps(unmarked)


async def test_cost_is_that_of_the_price_table_without_loading_litellm() -> None:
    loaded = "litellm" in sys.modules
    for name, table_name in ((CLAUDE, "claude-sonnet-4-5"), (GPT, "gpt-5")):
        price = table_price(name)
        assert price is not None
        assert price == table_price(table_name)
        assert opened(name)._price == price
    assert ("litellm" in sys.modules) == loaded


FAILURES = [
    (Reply({"type": "error", "error": {"type": "authentication_error", "message": f"bad {KEY}"}}, 401), "auth", 1),
    (Reply({"type": "error", "error": {"type": "not_found_error", "message": "no model"}}, 404), "model_not_found", 1),
    (Reply({"error": {"message": "prompt is too long: 9 tokens"}}, 400), "context_length", 1),
    (Reply({"error": {"message": "odd parameter"}}, 400), "bad_request", 1),
    (Reply({"type": "error", "error": {"type": "api_error", "message": "boom"}}, 500), "server_error", 2),
    (Reply("<html>"), "bad_response", 2),
    (Reply({"id": "x"}), "bad_response", 2),
    (Reply(cut=True), "connection", 2),
]


@BOTH
@pytest.mark.parametrize(("reply", "category", "count"), FAILURES, ids=[f[1] for f in FAILURES])
async def test_errors_in_our_categories(name: str, dialect: Dialect, reply: Reply, category: str, count: int) -> None:
    with ModelEndpoint(lambda body, n: reply) as endpoint, pytest.raises(ModelError) as caught:
        await ask(name, endpoint, ChatRequest([USER]))
    assert (caught.value.category, len(endpoint.requests)) == (category, count)
    assert KEY not in caught.value.message


@BOTH
async def test_a_rate_limit_is_waited_for_as_long_as_the_provider_says(name: str, dialect: Dialect) -> None:
    busy = Reply({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 529)
    limited = Reply({"error": {"type": "rate_limit_error", "message": "slow"}}, 429, {"retry-after": "0.02"})
    waits: list[float] = []
    replies = [limited, busy]
    decide: Decide = lambda body, n: replies[n] if n < 2 else answer(dialect, completion(content="x"), body)  # noqa: E731
    with ModelEndpoint(decide) as endpoint:
        done = await ask(name, endpoint, ChatRequest([USER], on_wait=waits.append))
    assert (done.retries, done.message["content"]) == (2, "x")
    assert waits[0] > 0.01


BROKEN = {
    "messages": b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n',
    "responses": b'data: {"type":"error","code":"rate_limit_exceeded","message":"busy","param":null}\n\n',
}


@BOTH
async def test_streams_that_break(name: str, dialect: Dialect) -> None:
    """Before the first piece a call is repeated; later it fails, and a stream that only stops is never an answer."""
    done = completion(content="some words")
    stream = dialect.stream(Call([]), Envelope("m"))
    begun = [stream.begin(), stream.delta({"content": "some"})]
    broken = BROKEN[dialect.name]
    replies = [Reply(parts=[broken]), Reply(parts=[*begun, broken]), Reply(parts=begun)]
    with ModelEndpoint(lambda body, n: replies.pop(0) if replies else answer(dialect, done, body)) as endpoint:
        pieces: list[Piece] = []
        with pytest.raises(ModelError, match="busy") as late:
            await ask(name, endpoint, ChatRequest([USER], on_piece=pieces.append))
        with pytest.raises(ModelError, match="before the answer was complete") as cut:
            await ask(name, endpoint, ChatRequest([USER], on_piece=pieces.append))
        assert (await ask(name, endpoint, ChatRequest([USER], on_piece=pieces.append))).message[
            "content"
        ] == "some words"
    assert (late.value.category, cut.value.category) == (Category.RATE_LIMIT.value, Category.BAD_RESPONSE.value)
    assert "".join(piece.delta["content"] for piece in pieces) == "somesomesome words"


async def test_efforts_and_limits_in_the_words_of_messages() -> None:
    def decide(body: Json, number: int) -> Reply:
        return answer(MESSAGES, completion(content="x"), body)

    with ModelEndpoint(decide) as endpoint:
        await ask(CLAUDE, endpoint, ChatRequest([USER]), params={"reasoning_effort": "medium"})
        new = ModelSpec.parse("anthropic/claude-x", base_url=endpoint.url[:-3], params={"reasoning_effort": "high"})
        model = open_model(new)
        await model.complete(ChatRequest([USER]))
        old = opened(
            CLAUDE, endpoint, params={"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 2000}}
        )
        await probe(old)
        await old.complete(ChatRequest([USER]))
    budget, adaptive, probed, own = endpoint.requests
    assert (budget["thinking"]["budget_tokens"], budget["max_tokens"]) == (2048, 64_000)
    assert (adaptive["thinking"]["type"], adaptive["output_config"]) == ("adaptive", {"effort": "high"})
    assert ("thinking" in probed, probed["max_tokens"]) == (False, 16)
    assert (own["thinking"]["budget_tokens"], own["max_tokens"]) == (2000, 3000)
    assert "x-api-key" not in endpoint.headers[1]


async def test_what_cannot_be_asked_is_an_error_of_the_request() -> None:
    with pytest.raises(ModelError, match="json_object: give a json_schema") as caught:
        await opened(CLAUDE).complete(ChatRequest([USER], params={"response_format": {"type": "json_object"}}))
    assert caught.value.category == Category.BAD_REQUEST.value


async def test_a_model_that_does_not_reason_is_asked_without_its_thoughts() -> None:
    refusal = Reply({"error": {"message": "Encrypted content is not supported with this model."}}, 400)

    def decide(body: Json, number: int) -> Reply:
        return refusal if "include" in body else answer(RESPONSES, completion(content="x"), body)

    with ModelEndpoint(decide) as endpoint:
        model = opened(GPT, endpoint)
        for _ in range(2):
            assert (await model.complete(ChatRequest([USER]))).message["content"] == "x"
        await model.close()
    assert ["include" in body for body in endpoint.requests] == [True, False, False]


async def test_thoughts_between_calls_stay_where_they_were() -> None:
    def thought(number: int) -> Json:
        return {"type": "reasoning", "id": f"rs_{number}", "summary": [], "encrypted_content": f"e{number}"}

    def call(number: int) -> Json:
        return {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"c{number}",
            "name": "add",
            "arguments": "{}",
        }

    output = [thought(0), call(0), thought(1), call(1)]
    reply = {"id": "resp_1", "model": "m", "status": "completed", "output": output, "usage": None}
    with ModelEndpoint(lambda body, n: check_request(RESPONSES, body) or Reply(reply)) as endpoint:
        model = opened(GPT, endpoint)
        done = await model.complete(ChatRequest([USER]))
        results = [{"role": "tool", "tool_call_id": f"c{number}", "content": "1"} for number in range(2)]
        await model.complete(ChatRequest([USER, done.message, *results]))
        await model.close()
    sent = [item.get("encrypted_content") or item.get("call_id") for item in endpoint.requests[1]["input"]]
    assert sent == [None, "e0", "c0", "e1", "c1", "c0", "c1"]


NAMES = [
    ("anthropic/claude-x", None, "messages"),
    ("anthropic/claude-x", "http://gate", "messages"),
    ("anthropic/claude-x", "https://openrouter.example/api/v1", "openai"),
    ("openai/responses/gpt-5", None, "responses"),
    ("openai/responses/gpt-5", "http://gate/v1", "responses"),
    ("openai/gpt-5.2-codex", None, "responses"),
    ("o3-pro", None, "responses"),
    ("openai/o3-pro", "http://gate/v1", "openai"),
    ("openai/gpt-5-mini", None, "litellm"),
    ("gpt-5", None, "litellm"),
    ("gemini/gemini-2.5-pro", None, "litellm"),
    ("bedrock/anthropic.claude-x", None, "litellm"),
]


@pytest.mark.parametrize(("name", "base_url", "kind"), NAMES)
def test_which_names_go_where(name: str, base_url: str | None, kind: str) -> None:
    assert ModelSpec.parse(name, base_url=base_url).kind == kind


@pytest.mark.parametrize(
    ("name", "variables", "origin", "header"),
    [
        (CLAUDE, {"ANTHROPIC_API_KEY": "k"}, "https://api.anthropic.com", ("x-api-key", "k")),
        (
            CLAUDE,
            {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "https://gw.example/v1/"},
            "https://gw.example",
            ("authorization", "Bearer t"),
        ),
        (GPT, {"OPENAI_API_KEY": "k"}, "https://api.openai.com", ("authorization", "Bearer k")),
        (
            GPT,
            {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://gw.example/v1"},
            "https://gw.example",
            ("authorization", "Bearer k"),
        ),
    ],
)
def test_address_and_key_come_from_the_providers_variables(
    name: str, variables: dict[str, str], origin: str, header: tuple[str, str]
) -> None:
    model = opened(name, api_key=None, provider_variables=variables)
    assert model._endpoint._url == f"{origin}/v1/{'messages' if name == CLAUDE else 'responses'}"
    assert header in model._endpoint._headers.items()


MESSAGES_EVENTS: list[Json] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
            "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1},
        },
    },
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "First."}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s1"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "redacted_thinking", "data": "hidden"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "thinking_delta", "thinking": "Then."}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "signature_delta", "signature": "s2"}},
    {"type": "content_block_stop", "index": 2},
    {"type": "content_block_start", "index": 3, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 3},
    {
        "type": "content_block_start", "index": 4,
        "content_block": {"type": "tool_use", "id": "t1", "name": "add", "input": {}},
    },
    {"type": "content_block_delta", "index": 4, "delta": {"type": "input_json_delta", "partial_json": ""}},
    {"type": "content_block_stop", "index": 4},
    {
        "type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 9},
    },
    {"type": "message_stop"},
]  # fmt: skip
REASONING = {
    "type": "reasoning", "id": "rs_1", "encrypted_content": "e1",
    "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
}  # fmt: skip
TEXT = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "Hi", "annotations": []}],
}  # fmt: skip
FUNCTION = {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "add", "arguments": "{}"}
RESPONSE: Json = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "claude", "output": [], "status": "completed",
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "usage": {
        "input_tokens": 12, "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 0}, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 21,
    },
}  # fmt: skip
RESPONSES_EVENTS: list[Json] = [
    {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "usage": None}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**REASONING, "summary": []}},
    *(
        event
        for index, part in enumerate(REASONING["summary"])
        for event in (
            {"type": "response.reasoning_summary_part.added", "output_index": 0, "item_id": "rs_1",
             "summary_index": index, "part": {"type": "summary_text", "text": ""}},
            {"type": "response.reasoning_summary_text.delta", "output_index": 0, "item_id": "rs_1",
             "summary_index": index, "delta": part["text"]},
        )
    ),
    {"type": "response.output_item.done", "output_index": 0, "item": REASONING},
    {"type": "response.output_text.delta", "output_index": 1, "item_id": "msg_1", "content_index": 0, "delta": "Hi",
     "logprobs": []},
    {"type": "response.output_item.done", "output_index": 1, "item": TEXT},
    {"type": "response.output_item.added", "output_index": 2, "item": {**FUNCTION, "arguments": ""}},
    {"type": "response.function_call_arguments.delta", "output_index": 2, "item_id": "fc_1", "delta": "{}"},
    {"type": "response.output_item.done", "output_index": 2, "item": FUNCTION},
    {"type": "response.completed", "response": RESPONSE},
]  # fmt: skip


@BOTH
async def test_streams_as_providers_send_them(name: str, dialect: Dialect) -> None:
    """Several thoughts, one of them hidden, empty pieces, no whole output at the end: all in the packages' types."""
    events = MESSAGES_EVENTS if dialect is MESSAGES else RESPONSES_EVENTS
    parts = [b": ping\n\n"]
    for number, event in enumerate(events):
        event = event if dialect is MESSAGES else {**event, "sequence_number": number}
        check_event(dialect, event)
        parts.append(b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n")
    pieces: list[Piece] = []
    with ModelEndpoint(lambda body, n: Reply(parts=parts)) as endpoint:
        done = await ask(name, endpoint, ChatRequest([USER], [TOOL], on_piece=pieces.append))
    message = done.message
    assert (message["reasoning_content"], message["content"]) == ("First.\nThen.", "Hi")
    assert message["tool_calls"] == [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]
    assert (done.finish_reason, done.model) == ("tool_calls", "claude")
    assert (done.usage.prompt_tokens, done.usage.cached_tokens, done.usage.completion_tokens) == (12, 7, 9)
    assert "".join(piece.delta.get("reasoning_content", "") for piece in pieces) == "First.\nThen."
    keys = ("signature", "data", "encrypted_content")
    opaque = [block[key] for block in message["thinking_blocks"] for key in keys if key in block]
    assert opaque == (["s1", "hidden", "s2"] if dialect is MESSAGES else ["e1"])
