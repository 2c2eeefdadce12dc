"""One answer of the model being trained: the question, the pieces while it is sampled, the whole with its tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from osmosis.base.json_types import JsonObject
from osmosis.records.base import Record
from osmosis.records.rollout import Message


class HeldTokens(Record):
    """The tokens of this conversation so far, as they were sampled and stitched.

    Rendering a conversation again may spell an earlier answer differently (the spaces of a tool call's JSON). With
    these the next prompt begins with exactly these tokens, as far as the chat template allows.
    """

    messages: int = Field(ge=1)
    """How many of the request's messages they cover; the last of those is the model's answer."""
    token_ids: list[int]


class SampleRequest(Record):
    """A chat completion. None means the plan's value."""

    id: str
    """Unique among the requests in flight."""
    messages: list[Message]
    tools: list[JsonObject] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    """0 takes the likeliest token."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """At most the plan's `max_response_length`."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end the answer; they are left out of its content."""
    seed: int | None = None
    """With the same seed, weights and prompt the answer is the same (builtin sampler on the CPU)."""
    stream: bool = False
    held: HeldTokens | None = None


class SampledToolCall(Record):
    """A call the model asked for, in the OpenAI shape."""

    id: str
    type: Literal["function"] = "function"
    function: JsonObject
    """`name`, and `arguments` as JSON text."""


class SampleDelta(Record):
    """What was sampled since the last one. Tool calls come with the whole answer."""

    content: str = ""
    reasoning: str = ""


class SampledAnswer(Record):
    """A whole answer, token for token."""

    prompt_ids: list[int]
    token_ids: list[int]
    """As sampled, the end-of-turn token included."""
    logprobs: list[float]
    """Natural logarithms, one per token, at the temperature and top-p of the request."""
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[SampledToolCall] = Field(default_factory=list)
    finish_reason: Literal["stop", "length", "tool_calls"]
    parse: Literal["template", "json", "content"] = "content"
    """What read the answer: the tokenizer's response template, `<tool_call>` JSON, or nothing but the text."""
    malformed_calls: int = 0
    """Tool calls that could not be read and are in the content as text."""
    held: bool = False
    """Whether the prompt begins with the tokens of `SampleRequest.held`."""
    step: int = 0
    """The step whose weights answered."""

    @property
    def message(self) -> Message:
        """The answer as a chat message."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        return message


class SampleError(Record):
    """Why there is no answer; `category` is a `records.rollout.Category` value."""

    category: str
    message: str


class SampleLine(Record):
    """One line of the answer to `/sample`: exactly one of the three is there."""

    delta: SampleDelta | None = None
    done: SampledAnswer | None = None
    error: SampleError | None = None
