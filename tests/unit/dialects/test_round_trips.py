"""Any conversation goes into each dialect and back, as far as the dialect can say it; replies whole and in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from osmosis.dialects import (
    CHAT,
    DIALECTS,
    GEMINI,
    MESSAGES,
    RESPONSES,
    Call,
    Dialect,
    EndpointError,
    Envelope,
    messages,
    responses,
)
from osmosis.llm.model import Completion, Piece
from osmosis.llm.openai_compatible import completion_of
from osmosis.llm.streaming import StreamedBody
from osmosis.records.run.rollout import Usage
from support.dialect_clients import build, read
from support.official_types import check_request

Json = dict[str, Any]
UNTIMED = settings(deadline=None)
ALL = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
NAMES = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
ARGUMENTS = st.dictionaries(NAMES, st.integers(-9, 9) | WORDS | st.lists(st.booleans(), max_size=2), max_size=3)
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    messages: list[Json] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(WORDS)})
    for turn in range(draw(st.integers(1, 4))):
        parts = [{"type": "text", "text": draw(WORDS)}, {"type": "image_url", "image_url": {"url": PIXEL}}]
        messages.append({"role": "user", "content": parts if draw(st.booleans()) else draw(WORDS)})
        answer: Json = {"role": "assistant", "content": draw(WORDS)}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(WORDS)
        calls = [(f"call_{turn}_{i}", draw(NAMES), draw(ARGUMENTS)) for i in range(draw(st.integers(0, 3)))]
        if calls:
            answer["content"] = draw(WORDS | st.none())
            answer["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": orjson.dumps(args).decode()},
                }
                for call_id, name, args in calls
            ]
        messages.append(answer)
        results = [{"role": "tool", "tool_call_id": call_id, "content": draw(WORDS)} for call_id, _, _ in calls]
        messages += draw(st.permutations(results))
    return messages


def tools(names: list[str]) -> list[Json]:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return [{"type": "function", "function": {"name": n, "description": "d", "parameters": schema}} for n in names]


def signed(dialect: Dialect, messages: list[Json]) -> list[Json]:
    """Return the conversation with its reasoning as the provider of the dialect signs it: without, it cannot travel."""
    for number, message in enumerate(messages):
        text = message.get("reasoning_content")
        if text and dialect is MESSAGES:
            message["thinking_blocks"] = [
                {"type": "thinking", "thinking": text, "signature": f"s{number}"},
                {"type": "redacted_thinking", "data": f"d{number}"},
            ]
        elif text and dialect is RESPONSES:
            summary = [{"type": "summary_text", "text": text}]
            item = {"type": "reasoning", "id": f"rs_{number}", "summary": summary, "encrypted_content": f"e{number}"}
            message["thinking_blocks"] = [item]
    return messages


@ALL
@settings(deadline=None, max_examples=50)
@given(messages=conversations(), names=st.lists(NAMES, unique=True, max_size=3))
def test_conversation_returns_unchanged(dialect: Dialect, messages: list[Json], names: list[str]) -> None:
    messages = signed(dialect, messages)
    params: Json = {"temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "tool_choice": "required"}
    call = Call(messages, tools(names) or None, params, model="m", stream=True)
    body = orjson.loads(orjson.dumps(build(dialect, call)))
    check_request(dialect, body)
    back = dialect.parse(body)
    assert back.messages == messages
    assert (back.tools, back.params) == (call.tools, params)
    assert dialect is GEMINI or (back.model, back.stream) == ("m", True)
    for index, handles in back.handles.items():
        assert messages[index]["role"] == "assistant"
        assert {tool["id"] for tool in messages[index].get("tool_calls", ())} <= set(handles)


@st.composite
def replies(draw: st.DrawFn) -> Completion:
    message: Json = {"role": "assistant", "content": draw(WORDS | st.none())}
    if draw(st.booleans()):
        message["reasoning_content"] = draw(WORDS)
    for i in range(draw(st.integers(0, 2))):
        function = {"name": draw(NAMES), "arguments": orjson.dumps(draw(ARGUMENTS)).decode()}
        message.setdefault("tool_calls", []).append({"id": f"call_{i}", "type": "function", "function": function})
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = "nothing"
    finish = "tool_calls" if "tool_calls" in message else draw(st.sampled_from(["stop", "length", "content_filter"]))
    usage = Usage(prompt_tokens=50, completion_tokens=7, cached_tokens=20, reasoning_tokens=2)
    return Completion(message=message, finish_reason=finish, usage=usage, model="m")


@ALL
@UNTIMED
@given(done=replies())
def test_whole_reply_is_read_back(dialect: Dialect, done: Completion) -> None:
    body = read(dialect, orjson.loads(orjson.dumps(dialect.render(Call([]), done, Envelope("m")))))
    choice = body["choices"][0]
    message = {key: value for key, value in choice["message"].items() if key != "thinking_blocks"}
    assert message == done.message
    assert choice["finish_reason"] == done.finish_reason
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (50, 7)
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 20
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def add_up_chat(events: list[Json]) -> tuple[str, str, list[Json]]:
    text = reasoning = ""
    calls: dict[int, Json] = {}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", ()):
                made = calls.setdefault(call["index"], {"name": "", "arguments": ""})
                for key, value in call["function"].items():
                    made[key] += value
    return text, reasoning, list(calls.values())


def add_up_messages(events: list[Json]) -> tuple[str, str, list[Json]]:
    blocks: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            for key, into in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                block[into] = block.get(into, "") + delta.get(key, "")
    assert [event["type"] for event in events][-2:] == ["message_delta", "message_stop"]
    calls = [{"name": block["name"], "arguments": block["json"]} for block in blocks if block["type"] == "tool_use"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    return text, "".join(block["thinking"] for block in blocks if block["type"] == "thinking"), calls


def add_up_responses(events: list[Json]) -> tuple[str, str, list[Json]]:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    reasoning = "".join(e["delta"] for e in events if e["type"] == "response.reasoning_summary_text.delta")
    output = events[-1]["response"]["output"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]
    calls = [{"name": i["name"], "arguments": i["arguments"]} for i in output if i["type"] == "function_call"]
    return text, reasoning, calls


def add_up_gemini(events: list[Json]) -> tuple[str, str, list[Json]]:
    parts = [part for event in events for part in event["candidates"][0]["content"]["parts"]]
    text = "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    reasoning = "".join(part["text"] for part in parts if part.get("thought"))
    return text, reasoning, [{"name": c["name"], "arguments": orjson.dumps(c["args"]).decode()} for c in calls]


ADD_UP: dict[str, Callable[[list[Json]], tuple[str, str, list[Json]]]] = {
    CHAT.name: add_up_chat,
    MESSAGES.name: add_up_messages,
    RESPONSES.name: add_up_responses,
    GEMINI.name: add_up_gemini,
}


@ALL
@UNTIMED
@given(done=replies(), cuts=st.lists(st.integers(1, 5), min_size=40, max_size=40), streamed=st.booleans())
def test_pieces_add_up_to_the_reply(dialect: Dialect, done: Completion, cuts: list[int], streamed: bool) -> None:
    stream = dialect.stream(Call([]), Envelope("m"))
    data = [stream.begin()]
    lengths = iter(cuts)
    message = done.message
    for key in ("reasoning_content", "content") if streamed else ():
        left = message.get(key) or ""
        while left and (length := next(lengths, 0)):
            data.append(stream.delta({key: left[:length]}))
            left = left[length:]
    for index, call in enumerate(message.get("tool_calls", ()) if streamed else ()):
        function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"][:2]}
        data.append(stream.delta({"tool_calls": [{"index": index, "id": call["id"], "function": function}]}))
        rest = {"arguments": call["function"]["arguments"][2:]}
        data.append(stream.delta({"tool_calls": [{"index": index, "function": rest}]}))
    expected = [call["function"] for call in message.get("tool_calls", ())]
    data.append(stream.finish(done))
    lines = [line for line in b"".join(data).split(b"\n") if line.startswith(b"data: {")]
    text, reasoning, calls = ADD_UP[dialect.name]([orjson.loads(line[6:]) for line in lines])
    assert (text, reasoning) == (message.get("content") or "", message.get("reasoning_content") or "")
    assert calls == expected


@pytest.mark.parametrize(("dialect", "client"), [(MESSAGES, messages), (RESPONSES, responses)])
@UNTIMED
@given(done=replies(), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_our_client_reads_a_stream_as_the_whole_reply(
    dialect: Dialect, client: Any, done: Completion, sizes: list[int]
) -> None:
    envelope = Envelope("m", handle="h1")
    stream = dialect.stream(Call([]), envelope)
    data = stream.begin() + stream.finish(done)
    whole = completion_of(client.parse_reply(dialect.render(Call([]), done, envelope)), model="m")
    pieces: list[Piece] = []
    body = StreamedBody(pieces.append, client.ReplyReader().read)
    start = number = 0
    while start < len(data):
        size = sizes[number % len(sizes)]
        body.feed(data[start : start + size])
        start, number = start + size, number + 1
    assert completion_of(body.body(), model="m") == whole
    told = add_up_chat([{"choices": [{"delta": piece.delta}]} for piece in pieces])
    calls = [call["function"] for call in whole.message.get("tool_calls", ())]
    assert told == (whole.message["content"] or "", whole.message.get("reasoning_content", ""), calls)


UNSAID = [
    (MESSAGES, {"role": "user", "content": "x", "name": "Ann"}, {"role": "user", "content": "x"}),
    (MESSAGES, {"role": "assistant", "content": "x", "reasoning_content": "r"}, {"role": "assistant", "content": "x"}),
    (MESSAGES, {"role": "assistant", "content": None}, None),
    (RESPONSES, {"role": "user", "content": "x", "name": "Ann"}, {"role": "user", "content": "x"}),
    (RESPONSES, {"role": "assistant", "content": "x", "reasoning_content": "r"}, {"role": "assistant", "content": "x"}),
    (
        RESPONSES,
        {"role": "tool", "tool_call_id": "c", "content": "x", "is_error": True},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ),
    (
        GEMINI,
        {"role": "tool", "tool_call_id": "c", "content": "x", "is_error": True},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ),
    (GEMINI, {"role": "system", "content": "x"}, {"role": "user", "content": "x"}),
]


@pytest.mark.parametrize(("dialect", "message", "rest"), UNSAID)
def test_what_a_dialect_cannot_say(dialect: Dialect, message: Json, rest: Json | None) -> None:
    first = {"role": "user", "content": "u"}
    back = dialect.parse(build(dialect, Call([first, message], model="m"))).messages
    assert back == [first, *([rest] if rest else ())]


REFUSED = [
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    (MESSAGES, {"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
    (MESSAGES, {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "server_tool_use"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"input": [{"type": "web_search_call", "id": "ws_1"}]}, "web_search_call"),
    (RESPONSES, {"input": "x", "tools": [{"type": "computer_use_preview"}]}, "computer_use_preview"),
    (GEMINI, {"contents": [], "tools": [{"googleSearch": {}}]}, "googleSearch"),
    (GEMINI, {"cachedContent": "cachedContents/1"}, "cachedContent"),
    (CHAT, {"messages": "hi"}, "messages must be a list"),
]


@pytest.mark.parametrize(("dialect", "body", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_cannot_be_done_is_refused_by_name(dialect: Dialect, body: Json, words: str) -> None:
    with pytest.raises(EndpointError) as refusal:
        dialect.parse(body)
    assert refusal.value.status == 400
    assert words in orjson.dumps(dialect.error_body(refusal.value)).decode()


def test_responses_tools_that_are_no_functions_keep_their_shape() -> None:
    body = {
        "input": "patch it",
        "tools": [
            {"type": "custom", "name": "apply_patch", "description": "d"},
            {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "get", "parameters": {}}]},
            {"type": "web_search"},
        ],
    }
    call = RESPONSES.parse(body)
    assert call.left_out == ["tool web_search"]
    assert [tool["function"]["name"] for tool in call.tools or ()] == ["apply_patch", "mcp__get"]
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "apply_patch", "arguments": '{"input": "*** Begin"}'}},
        {"id": "c2", "type": "function", "function": {"name": "mcp__get", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    done = Completion(message=message, finish_reason="tool_calls", usage=Usage())
    whole = RESPONSES.render(call, done, Envelope("m"))["output"]
    assert (whole[0]["type"], whole[0]["input"]) == ("custom_tool_call", "*** Begin")
    assert (whole[1]["name"], whole[1]["namespace"]) == ("get", "mcp")
    again = RESPONSES.parse({**body, "input": whole})
    assert again.messages[0]["tool_calls"][1]["function"]["name"] == "mcp__get"
    assert again.messages[0]["tool_calls"][0]["function"]["arguments"] == '{"input":"*** Begin"}'
