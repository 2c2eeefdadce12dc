"""The model proxy read by the real OpenAI client: plain, streamed, failing."""

import pytest

from osmosis.engine.rollout_model import RolloutModel
from osmosis.engine.task import Task
from osmosis.errors import ModelError
from osmosis.llm.model import ChatRequest, Completion
from osmosis.records.run.plan import ModelSpec
from osmosis.records.run.rollout import Usage
from osmosis.records.run.rows import Row
from osmosis.serve.client.model_proxy import ModelProxy

TOOL = {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "properties": {}}}}
ARGUMENTS = ('{"a": 0, "b": 7}', '{"a": 1, "b": 7}')
LONG = "the answer is forty-two, " * 40


def with_tools(request: ChatRequest) -> Completion:
    calls = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "multiply", "arguments": ARGUMENTS[i]}}
        for i in range(2)
    ]
    message = {"role": "assistant", "content": LONG, "tool_calls": calls}
    return Completion(message, "tool_calls", Usage(prompt_tokens=5, completion_tokens=9, cached_tokens=2))


class Answers:
    """A model that answers with tool calls, or fails with a category."""

    def __init__(self, category: str | None = None) -> None:
        self.spec = ModelSpec(name="scripted/model", kind="offline")
        self.category = category
        self.requests: list[ChatRequest] = []

    async def complete(self, request: ChatRequest) -> Completion:
        self.requests.append(request)
        if self.category:
            raise ModelError(f"the endpoint said {self.category}", category=self.category)
        return with_tools(request)

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_openai_client_reads_text_tool_calls_and_usage(stream: bool) -> None:
    from openai import AsyncOpenAI

    model = Answers()
    gate = ModelProxy(model)
    await gate.open()
    try:
        rollout = gate.open_rollout("r1", model=RolloutModel(model, Task(Row(3, {}), 1, "r1")))
        client = AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.bearer)
        asked = {
            "model": "openai/osmosis-rollout",
            "messages": [{"role": "user", "content": "?"}],
            "tools": [TOOL],
            "seed": 5,
        }
        if stream:
            text, names, arguments, finish, usage = "", {}, {}, None, None
            more = {"stream": True, "stream_options": {"include_usage": True}}
            async for chunk in await client.chat.completions.create(**asked, **more):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    finish = choice.finish_reason or finish
                    for call in choice.delta.tool_calls or []:
                        names[call.index] = names.get(call.index) or call.function.name
                        arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        else:
            done = await client.chat.completions.create(**asked)
            message, usage, finish = done.choices[0].message, done.usage, done.choices[0].finish_reason
            text = message.content
            names = {i: call.function.name for i, call in enumerate(message.tool_calls)}
            arguments = {i: call.function.arguments for i, call in enumerate(message.tool_calls)}
        await client.close()
        assert text == LONG
        assert names == {0: "multiply", 1: "multiply"}
        assert arguments == {0: '{"a": 0, "b": 7}', 1: '{"a": 1, "b": 7}'}
        assert finish == "tool_calls"
        assert (usage.prompt_tokens, usage.completion_tokens) == (5, 9)
        assert usage.prompt_tokens_details.cached_tokens == 2
        request = model.requests[0]
        assert (request.rollout_id, request.row_index, request.attempt) == ("r1", 3, 1)
        assert request.params == {"seed": 5}
        assert request.tools == [TOOL]
        assert rollout.model.usage.total_tokens == 14
        assert rollout.calls[0].finish_reason == "tool_calls"
        assert rollout.model.messages[-1]["content"] == LONG
    finally:
        await gate.close()


@pytest.mark.parametrize(
    ("category", "status"), [("auth", 401), ("model_not_found", 404), ("context_length", 400), ("rate_limit", 424)]
)
async def test_a_model_failure_is_one_answer_that_no_client_repeats(category: str, status: int) -> None:
    from openai import APIStatusError, AsyncOpenAI

    model = Answers(category)
    gate = ModelProxy(model)
    await gate.open()
    try:
        rollout = gate.open_rollout("r1")
        client = AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.bearer, max_retries=5)
        with pytest.raises(APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        await client.close()
        assert caught.value.status_code == status
        assert caught.value.code == category
        assert len(model.requests) == 1
        assert rollout.model.error is not None
        assert rollout.model.error.category == category
    finally:
        await gate.close()
