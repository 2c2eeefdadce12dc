"""A model for tests of agent loops and workflows: gives the answers of a script in order, and keeps the questions.

When the script runs out it fails, so that a loop that asks too often is noticed."""

from collections.abc import Iterable, Mapping

from osmosis.base.jsonable import JsonObject
from osmosis.errors import ModelError
from osmosis.records.protocol.v02 import RolloutMetrics
from osmosis.records.run.rollout import Category, Message
from osmosis.sdk.agent_loop import CompletionsResult


def call(name: str, arguments: str, call_id: str = "call_1") -> JsonObject:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def says(text: str | None = None, *calls: Mapping[str, object]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = list(calls)
    return message


class ScriptedLLM:
    """`ScriptedLLM([says(None, call("add", '{"a": 1, "b": 2}')), says("3")])` as the `llm` of a `RolloutContext`, its
    `respond` as a `transport` of `LocalBackend.execute`. It fails when the script runs out."""

    def __init__(self, script: Iterable[Message | Exception]) -> None:
        self._script = iter(script)
        self.questions: list[JsonObject] = []

    async def respond(self, body: JsonObject) -> JsonObject:
        self.questions.append({**body, "messages": list(body["messages"])})
        answer = next(self._script, None)
        if answer is None:
            raise ModelError("the script has no more answers", category=Category.BAD_REQUEST.value)
        if isinstance(answer, Exception):
            raise answer
        finish = "tool_calls" if answer.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        return {"choices": [{"index": 0, "message": dict(answer), "finish_reason": finish}], "usage": usage}

    async def chat_completions(self, messages: list[Message], **kwargs: object) -> CompletionsResult:
        body = await self.respond({"messages": messages, **kwargs})
        choice = body["choices"][0]
        return CompletionsResult(
            message=choice["message"],
            token_ids=[],
            logprobs=[],
            usage=body["usage"],
            finish_reason=choice["finish_reason"],
        )

    def get_metrics(self) -> RolloutMetrics:
        calls = len(self.questions)
        return RolloutMetrics(
            num_llm_calls=calls, prompt_tokens=10 * calls, response_tokens=5 * calls, max_context_tokens=15
        )
