"""The LiteLLM model against a loopback endpoint: same answers, same categories, same repeats as every other kind."""

import pytest

from osmosis.errors import ModelError
from osmosis.llm import ChatRequest, Completion, open_model
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Usage
from support.dialect_clients import completion_events
from support.endpoint import ModelEndpoint, Reply, text_reply

ASK = [{"role": "user", "content": "What is 2 * 3?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "multiply",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


async def ask(endpoint, request=None):
    spec = ModelSpec(name="openai/some-model", kind="litellm", base_url=endpoint.url, params={"temperature": 0.5})
    retry = Retry(max_attempts=2, base_delay_s=0.001, max_delay_s=0.002)
    model = open_model(spec, api_key="k", retry=retry, timeout_s=20)
    try:
        return await model.complete(request or ChatRequest(ASK))
    finally:
        await model.close()


async def test_answers_tools_and_usage():
    with ModelEndpoint() as endpoint:
        done = await ask(endpoint, ChatRequest(ASK, [TOOL], {"top_p": 0.9}))
    assert done.message["tool_calls"][0]["function"]["name"] == "multiply"
    assert done.usage.total_tokens > 0
    body = endpoint.requests[0]
    assert (body["model"], body["temperature"], body["top_p"]) == ("some-model", 0.5, 0.9)
    assert body["tools"][0]["function"]["name"] == "multiply"


async def test_streams_to_who_listens():
    def events(body, number):
        call = {"id": "c1", "type": "function", "function": {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}}
        message = {"role": "assistant", "content": "one moment " * 40, "tool_calls": [call]}
        done = Completion(message, "tool_calls", Usage(prompt_tokens=5, completion_tokens=9))
        return Reply(parts=list(completion_events(done, model="some-model", with_usage=True)))

    told = []
    with ModelEndpoint(events) as endpoint:
        done = await ask(endpoint, ChatRequest(ASK, [TOOL], on_piece=told.append))
    assert endpoint.requests[0]["stream"] is True
    assert len(told) > 2
    assert done.message["content"] == "one moment " * 40
    assert done.message["tool_calls"][0]["function"] == {"name": "multiply", "arguments": '{"a": 2, "b": 3}'}
    assert (done.finish_reason, done.usage.prompt_tokens, done.usage.completion_tokens) == ("tool_calls", 5, 9)


@pytest.mark.parametrize(
    ("reply", "category", "asked"),
    [
        (Reply({"error": {"message": "bad key"}}, 401), "auth", 1),
        (Reply({"error": {"message": "no such model"}}, 404), "model_not_found", 1),
        (Reply({"error": {"message": "odd parameter"}}, 400), "bad_request", 1),
        (Reply({"error": {"message": "boom"}}, 500), "server_error", 2),
    ],
)
async def test_errors_in_our_categories(reply, category, asked):
    with ModelEndpoint(lambda body, n: reply) as endpoint, pytest.raises(ModelError) as caught:
        await ask(endpoint)
    assert caught.value.category == category
    assert len(endpoint.requests) == asked


async def test_rate_limits_are_waited_for():
    limited = Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "0.01"})
    with ModelEndpoint(lambda body, n: limited if n < 4 else None) as endpoint:
        done = await ask(endpoint)
    assert done.retries == 4


@pytest.mark.parametrize(
    "bad",
    [
        Reply("<html>", 200),
        Reply("null", 200),
        Reply([], 200),
        Reply({"choices": []}),
        Reply({"choices": [{"message": "text"}]}),
        Reply({"choices": [{"message": {"content": 3}}]}),
    ],
)
async def test_an_answer_that_cannot_be_read_is_that_on_this_path_too(bad):
    with ModelEndpoint(lambda body, n: bad) as endpoint, pytest.raises(ModelError) as caught:
        await ask(endpoint)
    assert (caught.value.category, caught.value.status) == ("bad_response", None)


async def test_no_word_of_usage_is_not_free_on_this_path_either():
    reply = text_reply("hi")
    reply.body["usage"] = None
    with ModelEndpoint(lambda body, n: reply) as endpoint:
        spec = ModelSpec(name="openai/some-model", kind="litellm", base_url=endpoint.url, price=(1.0, 2.0))
        model = open_model(spec, api_key="k")
        assert (await model.complete(ChatRequest(ASK))).usage.cost_usd is None
        await model.close()
