from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.run.rollout import Message


class Example(Record):
    """One conversation to imitate: exact tokens where they are known, else messages, which the trainer renders. Only
    the answers of the assistant in `messages` are trained on."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[JsonObject] | None = None
    token_ids: list[int] = Field(default_factory=list)
    mask: list[int] = Field(default_factory=list)
    """As long as `token_ids`: 1 = trained on."""
    rejected: Example | None = None
    """A worse one, to prefer this one to (`dpo`)."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Example:
        if len(self.mask) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.mask)} mask values")
        if not self.token_ids and not self.messages:
            raise ValueError("an example needs token_ids or messages")
        return self


class Collect(Record):
    type: Literal["collect"] = "collect"
    step: int
    """Of a validation, the step whose weights it judges; 0 before the first step."""
    kind: Literal["train", "validation"]
    rows: list[int]
    samples_per_row: int


class StepMetrics(Record):
    type: Literal["metrics"] = "metrics"
    step: int
    values: dict[str, float]


class Checkpointed(Record):
    type: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    kind: Literal["regular", "stop", "final"]
    reward: float | None = None
    """Mean validation reward of these weights; without validation rows, mean reward of the step's rollouts."""
    best: bool = False
    removed: list[str] = Field(default_factory=list)


class Notice(Record):
    type: Literal["notice"] = "notice"
    step: int
    message: str


class Failed(Record):
    type: Literal["failed"] = "failed"
    category: Literal["model", "memory", "data", "diverged", "engine", "bug"]
    """`model`: the base model or its tokenizer cannot be used; `memory`: it does not fit; `data`: rows or examples;
    `diverged`: a loss or gradient that is no number; `engine`: a server behind the trainer; `bug`: ours.
    """
    message: str
    fix: str | None = None
    step: int = 0
    traceback: str | None = None


class Done(Record):
    type: Literal["done"] = "done"
    step: int
    stopped: bool = False


Event = Annotated[Collect | StepMetrics | Checkpointed | Notice | Failed | Done, Field(discriminator="type")]


class Numbered(Record):
    number: int
    event: Event


class ModelFacts(Record):
    architecture: str
    parameters: int
    trainable_parameters: int
    context_length: int | None = None
    dtype: str
    device: str
    chat_template: bool
    tool_calls: Literal["template", "json"]
    cache_tokens: int | None = None
    versions: dict[str, str] = Field(default_factory=dict)


class TrainerHealth(Record):
    state: Literal["loading", "ready", "training", "failed", "done"]
    run: str
    step: int = 0
    model: ModelFacts | None = None
    peak_memory_bytes: int = 0
    requests_in_flight: int = 0
    requests_done: int = 0
    last_event: int = 0


class HeldTokens(Record):
    """The tokens of this conversation so far, as they were sampled and stitched. Rendering a conversation again may
    spell an earlier answer differently (the spaces of a tool call's JSON). With these the next prompt begins with
    exactly these tokens, as far as the chat template allows."""

    messages: int = Field(ge=1)
    """How many of the request's messages they cover; the last of those is the model's answer."""
    token_ids: list[int]


class SampleRequest(Record):
    """A chat completion. None means the plan's value."""

    id: str
    messages: list[Message]
    tools: list[JsonObject] | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: list[str] = Field(default_factory=list)
    """Texts that end the answer; its content leaves them out."""
    seed: int | None = None
    """With the same seed, weights and prompt the answer is the same (builtin sampler on the CPU)."""
    stream: bool = False
    held: HeldTokens | None = None


class SampledToolCall(Record):
    id: str
    type: Literal["function"] = "function"
    function: JsonObject


class SampleDelta(Record):
    content: str = ""
    reasoning: str = ""


class SampledAnswer(Record):
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
    held: bool = False
    repaired: bool = False
    """Whether the chat template alone would have written other tokens over what was held."""
    step: int = 0

    @property
    def message(self) -> Message:
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
