from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypedDict, runtime_checkable

from osmosis.base.jsonable import JsonObject
from osmosis.records.run.plan import ModelSpec, Retry
from osmosis.records.run.rollout import Completion as Completion, Message


@dataclass(slots=True)
class Piece:
    delta: JsonObject
    logprobs: JsonObject | None = None


STREAMING = frozenset({"stream", "stream_options"})
"""Parameters about how an answer travels; a listener sets them, never a request's own parameters."""


@dataclass(slots=True)
class ChatRequest:
    messages: list[Message]
    tools: list[JsonObject] | None = None
    params: JsonObject = field(default_factory=dict)
    rollout_id: str = ""  # With `row_index` and `attempt` it seeds the stand-in and keys the cache
    row_index: int = 0
    attempt: int = 0
    on_wait: Callable[[float], None] | None = None
    """Called with the seconds before each wait for a rate limit, so that a deadline can be moved."""
    on_piece: Callable[[Piece], None] | None = None
    """Receives the answer while it is written, from a model that can stream; the pieces add up to the completion."""
    told: bool = False  # True once a piece was emitted: from then on the call cannot be repeated
    purpose: str = ""  # What the call is for, when not the agent's own work (`dialects.harnesses`)

    def tell(self, piece: Piece) -> None:
        if self.on_piece is not None:
            self.told = True
            self.on_piece(piece)


def sampling(spec: ModelSpec, request: ChatRequest) -> JsonObject:
    params = {**spec.params, **request.params} if request.params else dict(spec.params)
    seed = params.get("seed")
    if request.attempt and isinstance(seed, int) and seed == spec.params.get("seed"):
        params["seed"] = seed + request.attempt
    return params


class ModelOptions(TypedDict, total=False):
    api_key: str | None
    retry: Retry | None
    timeout_s: float | None  # seconds of one call
    signals: "Signals | None"
    provider_variables: Mapping[str, str] | None


class Signals(Protocol):
    def answered(self, seconds: float) -> None: ...

    def rate_limited(self, seconds: float) -> None: ...


@runtime_checkable
class Model(Protocol):
    """Answers chat requests. Safe to use from many rollouts of one event loop at once."""

    spec: ModelSpec

    async def complete(self, request: ChatRequest) -> Completion:
        """Return the answer; raise `errors.ModelError` whose `category` is a `Category` value."""

    async def close(self) -> None: ...
