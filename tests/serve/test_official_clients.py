"""The official clients of three providers take every answer of ours: whole, streamed, cut off, refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import orjson
import pytest

from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion, Piece
from osmosis.records.run.rollout import Category, Usage
from osmosis.serve.client.model_http import InferenceEndpoint

from .support import SPEC

genai = pytest.importorskip("google.genai", reason="google-genai needs Python 3.11")
genai_errors = pytest.importorskip("google.genai.errors")
genai_types = pytest.importorskip("google.genai.types")

Json = dict[str, Any]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALLS = [
    {"id": f"call_{i}", "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
    for i, city in enumerate(["Oslo", "Rome"])
]


def answer(finish: str = "tool_calls", **message: Any) -> Completion:
    usage = Usage(prompt_tokens=30, completion_tokens=9, cached_tokens=10, reasoning_tokens=4)
    return Completion(message={"role": "assistant", "content": None, **message}, finish_reason=finish, usage=usage)


BOTH = answer(content="Let me look.", reasoning_content="Two cities.", tool_calls=CALLS)


class Speaks:
    """Answers `done` in pieces of a few characters, or raises `error` after `fails_after` pieces."""

    def __init__(self, done: Completion, error: ModelError | None = None, fails_after: int = 0) -> None:
        self.spec = SPEC
        self.requests: list[ChatRequest] = []
        self.done, self.error, self.fails_after = done, error, fails_after

    async def complete(self, request: ChatRequest) -> Completion:
        self.requests.append(request)
        told = 0
        for key in ("reasoning_content", "content"):
            text = self.done.message.get(key) or ""
            for start in range(0, len(text), 4):
                if self.error is not None and told == self.fails_after:
                    raise self.error
                request.tell(Piece({key: text[start : start + 4]}))
                told += 1
                await asyncio.sleep(0)
        for index, call in enumerate(self.done.message.get("tool_calls") or ()):
            function = call["function"]
            head = {"index": index, "id": call["id"], "function": {"name": function["name"], "arguments": ""}}
            request.tell(Piece({"tool_calls": [head]}))
            for start in range(0, len(function["arguments"]), 5):
                more = {"arguments": function["arguments"][start : start + 5]}
                request.tell(Piece({"tool_calls": [{"index": index, "function": more}]}))
        if self.error is not None:
            raise self.error
        return Completion(message=self.done.message, finish_reason=self.done.finish_reason, usage=self.done.usage)

    async def close(self) -> None:
        return None


@asynccontextmanager
async def served(model: Speaks) -> AsyncIterator[str]:
    endpoint = InferenceEndpoint(model, name="tiny", key="the-key", time_limit_s=30.0)
    url = await endpoint.open()
    try:
        yield url.removesuffix("/v1")
    finally:
        await endpoint.close()


def open_openai(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="the-key", max_retries=0)


def open_anthropic(url: str) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=url, api_key="the-key", max_retries=0)


def open_genai(url: str) -> Any:
    return genai.Client(api_key="the-key", http_options=genai_types.HttpOptions(base_url=url)).aio


Seen = tuple[str, str, list[tuple[str, Json]], str, tuple[int, int]]
"""Text, reasoning, calls, end, tokens of prompt and answer: what a client shows of an answer."""


async def ask_messages(url: str, *, stream: bool) -> Seen:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    arguments: Json = {
        "model": "tiny",
        "max_tokens": 99,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}, image]}],
        "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
    }
    async with open_anthropic(url) as client:
        if stream:
            async with client.messages.stream(**arguments) as events:
                message: Any = await events.get_final_message()
        else:
            message = await client.messages.create(**arguments)
    blocks = message.content
    usage = message.usage
    return (
        "".join(block.text for block in blocks if block.type == "text"),
        "".join(block.thinking for block in blocks if block.type == "thinking"),
        [(block.name, block.input) for block in blocks if block.type == "tool_use"],
        message.stop_reason,
        (usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens),
    )


async def ask_responses(url: str, *, stream: bool) -> Seen:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}
    arguments: Json = {
        "model": "tiny",
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}, image]}],
        "tools": [{"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": False}],
    }
    async with open_openai(url) as client:
        if stream:
            # Its accumulating helper raises for answers that were cut off, whoever sends them.
            *_, last = [event async for event in await client.responses.create(stream=True, **arguments)]
            response: Any = last.response
        else:
            response = await client.responses.create(**arguments)
    items = response.output
    reason = response.incomplete_details.reason if response.incomplete_details else response.status
    return (
        response.output_text,
        "".join(part.text for item in items if item.type == "reasoning" for part in item.summary),
        [(item.name, openai_json(item.arguments)) for item in items if item.type == "function_call"],
        reason,
        (response.usage.input_tokens, response.usage.output_tokens),
    )


async def ask_chat(url: str, *, stream: bool) -> Seen:
    parts = [
        {"type": "text", "text": "Weather?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
    ]
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, "strict": True}}
    arguments: Json = {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}],
        "tools": [tool],
    }
    async with open_openai(url) as client:
        if stream:
            options = {"include_usage": True}
            async with client.chat.completions.stream(stream_options=options, **arguments) as events:
                done: Any = await events.get_final_completion()
        else:
            done = await client.chat.completions.create(**arguments)
    choice = done.choices[0]
    calls = [(call.function.name, openai_json(call.function.arguments)) for call in choice.message.tool_calls or ()]
    reasoning = getattr(choice.message, "reasoning_content", None) or ""
    usage = (done.usage.prompt_tokens, done.usage.completion_tokens)
    return choice.message.content or "", reasoning, calls, choice.finish_reason, usage


async def ask_gemini(url: str, *, stream: bool) -> Seen:
    declared = genai_types.FunctionDeclaration(name="weather", description="d", parameters_json_schema=SCHEMA)
    config = genai_types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[genai_types.Tool(function_declarations=[declared])],
        automatic_function_calling=genai_types.AutomaticFunctionCallingConfig(disable=True),
        temperature=1.0,
        top_k=64,
    )
    data = genai_types.Blob(mime_type="image/png", data=__import__("base64").b64decode(PIXEL))
    contents = [
        genai_types.Content(role="user", parts=[genai_types.Part(text="Weather?"), genai_types.Part(inline_data=data)])
    ]
    client = open_genai(url)
    if stream:
        chunks = [
            c async for c in await client.models.generate_content_stream(model="tiny", contents=contents, config=config)
        ]
    else:
        chunks = [await client.models.generate_content(model="tiny", contents=contents, config=config)]
    parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
    usage = chunks[-1].usage_metadata
    return (
        "".join(part.text for part in parts if part.text and not part.thought),
        "".join(part.text for part in parts if part.text and part.thought),
        [(part.function_call.name, part.function_call.args) for part in parts if part.function_call],
        chunks[-1].candidates[0].finish_reason.value,
        (usage.prompt_token_count, usage.candidates_token_count + usage.thoughts_token_count),
    )


def openai_json(text: str) -> Json:
    value: Json = orjson.loads(text)
    return value


Ask = Callable[..., Any]
ASKS: dict[str, Ask] = {"chat": ask_chat, "messages": ask_messages, "responses": ask_responses, "gemini": ask_gemini}
ENDS = {
    "tool_calls": {"chat": "tool_calls", "messages": "tool_use", "responses": "completed", "gemini": "STOP"},
    "length": {"chat": "length", "messages": "max_tokens", "responses": "max_output_tokens", "gemini": "MAX_TOKENS"},
    "content_filter": {
        "chat": "content_filter",
        "messages": "refusal",
        "responses": "content_filter",
        "gemini": "SAFETY",
    },
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ASKS)
async def test_client_shows_the_answer(name: str, stream: bool) -> None:
    model = Speaks(BOTH)
    async with served(model) as url:
        text, reasoning, calls, end, tokens = await ASKS[name](url, stream=stream)
    assert (text, reasoning) == ("Let me look.", "Two cities.") or (name == "chat" and stream)
    assert calls == [("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})]
    assert (end, tokens) == (ENDS["tool_calls"][name], (30, 9))
    request = model.requests[0]
    assert request.messages[0] == {"role": "system", "content": "Be brief."}
    assert [part["type"] for part in request.messages[1]["content"]] == ["text", "image_url"]
    assert request.messages[1]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"
    assert (request.tools or [{}])[0]["function"]["parameters"] == SCHEMA


@pytest.mark.parametrize("finish", ["length", "content_filter"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["messages", "responses", "gemini"])
async def test_client_tells_why_an_answer_ended(name: str, stream: bool, finish: str) -> None:
    async with served(Speaks(answer(finish, content="I can"))) as url:
        text, _, calls, end, _ = await ASKS[name](url, stream=stream)
    assert (text, calls, end) == ("I can", [], ENDS[finish][name])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ["messages", "responses", "gemini"])
async def test_client_reads_a_refusal(name: str, stream: bool) -> None:
    async with served(Speaks(answer("stop", refusal="I will not."))) as url:
        text, _, calls, end, _ = await ASKS[name](url, stream=stream)
    assert (text, calls) == ("I will not.", [])
    assert end == {"messages": "refusal", "responses": "completed", "gemini": "STOP"}[name]


@pytest.mark.parametrize("name", ASKS)
async def test_a_slow_stream_arrives_as_it_is_written(name: str) -> None:
    """The model goes on only once its first words are at the client."""
    arrived = asyncio.Event()

    class Waits(Speaks):
        async def complete(self, request: ChatRequest) -> Completion:
            request.tell(Piece({"content": "Let "}))
            await asyncio.wait_for(arrived.wait(), 20)
            return self.done

    async with served(Waits(answer("stop", content="Let me look."))) as url:
        pieces = [text async for text in FIRST_WORDS[name](url, arrived.set)]
    assert "".join(pieces) == "Let me look."


async def words_of_chat(url: str, on_first: Callable[[], None]) -> AsyncIterator[str]:
    messages: Any = [{"role": "user", "content": "?"}]
    async with open_openai(url) as client:
        async for chunk in await client.chat.completions.create(model="tiny", messages=messages, stream=True):
            if chunk.choices and (text := chunk.choices[0].delta.content):
                on_first()
                yield text


async def words_of_messages(url: str, on_first: Callable[[], None]) -> AsyncIterator[str]:
    messages: Any = [{"role": "user", "content": "?"}]
    async with (
        open_anthropic(url) as client,
        client.messages.stream(model="tiny", max_tokens=9, messages=messages) as all,
    ):
        async for text in all.text_stream:
            on_first()
            yield text


async def words_of_responses(url: str, on_first: Callable[[], None]) -> AsyncIterator[str]:
    async with open_openai(url) as client:
        async for event in await client.responses.create(model="tiny", input="?", stream=True):
            if event.type == "response.output_text.delta":
                on_first()
                yield event.delta


async def words_of_gemini(url: str, on_first: Callable[[], None]) -> AsyncIterator[str]:
    async for chunk in await open_genai(url).models.generate_content_stream(model="tiny", contents="?"):
        if chunk.text:
            on_first()
            yield chunk.text


FIRST_WORDS: dict[str, Callable[..., AsyncIterator[str]]] = {
    "chat": words_of_chat,
    "messages": words_of_messages,
    "responses": words_of_responses,
    "gemini": words_of_gemini,
}
ERRORS = (openai.APIError, anthropic.APIError, genai_errors.APIError)


@pytest.mark.parametrize("name", ASKS)
async def test_a_stream_that_breaks_is_an_error_for_the_client(name: str) -> None:
    error = ModelError("the machine went away", category=Category.SERVER_DIED.value)
    async with served(Speaks(BOTH, error, fails_after=3)) as url:
        if name == "responses":  # a failed response is an event, not an exception, of this client
            async with open_openai(url) as client:
                events = [e async for e in await client.responses.create(model="t", input="?", stream=True)]
            assert (events[-1].type, events[-1].response.error.message) == ("response.failed", error.message)
            return
        if name == "gemini":
            chunks = await open_genai(url).models.generate_content_stream(model="tiny", contents="?")
            with pytest.raises(ERRORS):
                [chunk async for chunk in chunks]
            return
        with pytest.raises(ERRORS, match="went away"):
            await ASKS[name](url, stream=True)


@pytest.mark.parametrize(
    ("category", "kinds"),
    [
        (Category.CONTEXT_LENGTH, (openai.BadRequestError, anthropic.BadRequestError, genai_errors.ClientError)),
        (Category.SERVER_DIED, (openai.InternalServerError, anthropic.APIStatusError, genai_errors.ServerError)),
        (Category.RATE_LIMIT, (openai.APIStatusError, anthropic.RateLimitError, genai_errors.ClientError)),
    ],
)
@pytest.mark.parametrize("name", ASKS)
async def test_errors_have_the_classes_of_each_client(name: str, category: Category, kinds: tuple[Any, ...]) -> None:
    error = ModelError("no room for 9000 tokens", category=category.value)
    async with served(Speaks(answer("stop", content="x"), error)) as url:
        with pytest.raises(kinds, match="no room for 9000 tokens") as raised:
            await ASKS[name](url, stream=False)
    if name == "responses":  # one harness gives up at 429, and retries 503
        assert raised.value.status_code == (503 if category is not Category.CONTEXT_LENGTH else 400)
    if name == "messages" and category is Category.CONTEXT_LENGTH:
        assert "prompt is too long" in str(raised.value)


async def test_counts_and_models_in_each_shape() -> None:
    async with served(Speaks(BOTH)) as url:
        async with open_anthropic(url) as client:
            message: Any = {"role": "user", "content": "How many tokens are these, please?"}
            count = await client.messages.count_tokens(model="tiny", messages=[message])
            assert count.input_tokens > 5
            assert [model.id async for model in client.models.list()] == ["tiny"]
        async with open_openai(url) as other:
            assert [model.id async for model in other.models.list()] == ["tiny"]
        google = open_genai(url)
        assert (await google.models.count_tokens(model="tiny", contents="How many?")).total_tokens > 2
        assert [model.name async for model in await google.models.list()] == ["models/tiny"]
