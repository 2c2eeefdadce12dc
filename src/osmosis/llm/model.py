"""The one way to ask a language model: `Model.complete(ChatRequest) -> Completion`, told in pieces to who listens.

Every kind of model (an endpoint, a provider, the offline stand-in, a recording) is one class behind this
protocol. These are plain dataclasses, not records: they are made per call, and nothing stores them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Protocol, runtime_checkable

from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.records.plan import ModelSpec
from osmosis.records.rollout import CallTokens, Message, Usage


@dataclass(slots=True)
class Piece:
    """A part of an answer, told while the rest is still being written."""

    delta: JsonObject
    """In the wire form of a chunk: more `content`, more `reasoning_content`, more of `tool_calls`, ..."""
    logprobs: JsonObject | None = None
    """Of the tokens in it, in the same form."""


STREAMING = frozenset({"stream", "stream_options"})
"""Parameters that say how an answer travels: that is between a model and its wire, and whoever listens says so."""


@dataclass(slots=True)
class ChatRequest:
    """One question to a model."""

    messages: list[Message]
    tools: list[JsonObject] | None = None
    params: JsonObject = field(default_factory=dict)
    """Sampling parameters of this call; they override the model's own."""
    rollout_id: str = ""
    """Who asks. With `row_index` and `attempt` it seeds the stand-in and keys the cache."""
    row_index: int = 0
    attempt: int = 0
    on_wait: Callable[[float], None] | None = None
    """Called with the seconds before each wait for a rate limit, so that a deadline can be moved."""
    on_piece: Callable[[Piece], None] | None = None
    """Hears the answer while it is written, from a model that can stream; what it heard adds up to the completion, or
    to the beginning of it. A model that cannot stream tells nothing."""
    told: bool = False
    """Whether a piece was told: from then on the call cannot be repeated."""

    def tell(self, piece: Piece) -> None:
        """Tells a piece to whoever listens; for models."""
        if self.on_piece is not None:
            self.told = True
            self.on_piece(piece)


def sampling(spec: ModelSpec, request: ChatRequest) -> JsonObject:
    """The sampling parameters of one call: the model's own, then the request's.

    The plan's `seed` is moved on by the attempt number: with one seed for all, attempts would repeat one answer.
    """
    params = {**spec.params, **request.params} if request.params else dict(spec.params)
    seed = params.get("seed")
    if request.attempt and isinstance(seed, int) and seed == spec.params.get("seed"):
        params["seed"] = seed + request.attempt
    return params


@dataclass(slots=True)
class Completion:
    """One answer of a model."""

    message: Message
    finish_reason: str | None
    usage: Usage
    model: str | None = None
    """The model that answered, as the endpoint names it."""
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None
    top_logprobs: list[JsonObject] | None = None
    """By token, as the endpoint gives them: `token`, `logprob` and the likeliest others (`top_logprobs`)."""
    choices: list[JsonObject] = field(default_factory=list)
    """Every answer in the wire form, where more than one was asked for (`n`); `message` is the first."""
    fingerprint: str | None = None
    """`system_fingerprint`: which build and configuration of the model answered."""
    retries: int = 0
    """Retries that this answer took, waits for rate limits included."""
    cached: bool = False
    raw_id: str | None = None

    @property
    def tokens(self) -> CallTokens | None:
        """Token ids and log-probabilities, where the answer has any."""
        prompt, completion = self.prompt_token_ids, self.token_ids
        logprobs, top = self.logprobs, self.top_logprobs
        if not (prompt or completion or logprobs or top):
            return None
        return CallTokens.model_construct(
            prompt_token_ids=prompt, completion_token_ids=completion, logprobs=logprobs, top_logprobs=top
        )


class Signals(Protocol):
    """Who wants to know how calls go: the adaptive limiter of the engine."""

    def answered(self, seconds: float) -> None: ...

    def rate_limited(self, seconds: float) -> None: ...


@runtime_checkable
class Model(Protocol):
    """Answers chat requests. Safe to use from many rollouts of one event loop at once."""

    spec: ModelSpec

    async def complete(self, request: ChatRequest) -> Completion:
        """The answer; raises `errors.ModelError` whose `category` is a `records.rollout.Category` value.

        A model that can stream tells the pieces of the answer to the request's `on_piece`, when there is one.
        """
        ...

    async def close(self) -> None: ...
