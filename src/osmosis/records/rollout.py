"""What one attempt at one row left behind: the rollout. The engine writes it, resume reads it, the platform
stores it, the page shows it, training learns from it. One shape everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Literal, TypedDict

import orjson
from pydantic import Field
from typing_extensions import Unpack

from osmosis.base.json_types import JsonObject
from osmosis.base.numbers import as_float

from .base import Record, utc_now
from .keys import Key, place_key

Message = JsonObject
"""One chat message in the OpenAI shape (`role`, `content`, `tool_calls`, `tool_call_id`, ...)."""


AnswerIssue = Literal["filtered", "refused", "truncated", "empty"]
"""What may be wrong with an answer of which no failure says it."""


class Phase(str, Enum):
    """Where a rollout failed."""

    SETUP = "setup"
    """Environment, rollout server or model not usable."""
    AGENT = "agent"
    """While the agent or workflow ran."""
    MODEL = "model"
    """In a model call that the agent did not survive."""
    SCORE = "score"
    """In a score function, rubric or grader."""


class Category(str, Enum):
    """Why a rollout failed."""

    AGENT_ERROR = "agent_error"
    SCORE_ERROR = "score_error"
    INVALID_SCORE = "invalid_score"
    TIMEOUT = "timeout"
    RATE_LIMIT = "rate_limit"
    AUTH = "auth"
    MODEL_NOT_FOUND = "model_not_found"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH = "context_length"
    SERVER_ERROR = "server_error"
    CONNECTION = "connection"
    BAD_RESPONSE = "bad_response"
    SERVER_DIED = "server_died"
    CANCELLED = "cancelled"
    BUDGET = "budget"
    UNKNOWN = "unknown"

    @property
    def is_infrastructure(self) -> bool:
        """Whether it says nothing about the agent's work."""
        return self not in (Category.AGENT_ERROR, Category.SCORE_ERROR, Category.INVALID_SCORE)


class Usage(Record):
    """Tokens and money. Adds up: `Usage() + call.usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt: read from the provider's cache."""
    cache_write_tokens: int = 0
    """Of the prompt: written to that cache, at a price of their own."""
    reasoning_tokens: int = 0
    """Of the completion: thought and not said."""
    cost_usd: float | None = None
    """None = unknown price, not free."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        known = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost_usd=sum(known) if known else None,
        )


class Failure(Record):
    """Why there is no result. Data, never an exception that ends a run."""

    phase: Phase
    category: Category
    message: str
    """One paragraph; secrets redacted."""
    traceback: str | None = None
    """The last frames, redacted; None when there is no Python exception behind it."""
    fix: str | None = None
    """What to do next, when known."""


LARGEST_SCORE = 1e50
"""The largest score that counts: sums of squares over any number of rollouts stay finite."""


class _ScoreFields(TypedDict, total=False):
    name: str
    failure: Failure | None
    usage: Usage | None
    duration_ms: float


class Score(Record):
    """One judgement of one rollout. A score function may return it: `Score(0.5, "right, but not as JSON")`."""

    name: str = ""
    """The function as given (`rewards:compute_reward`), with `.KEY` for one of several that it returned, or `reward`
    for the grader's own. A score function leaves it out."""
    value: float | None = None
    """None when scoring failed: a failure is never a zero."""
    reason: str | None = None
    """Why: shown wherever the score is."""
    metadata: JsonObject | None = None
    """Anything JSON to keep beside it; not interpreted."""
    parts: dict[str, float] | None = None
    """What the value is made of: shown beside it, not added up."""
    failure: Failure | None = None
    usage: Usage | None = None
    """What a judge consumed; apart from the agent's usage."""
    duration_ms: float = 0.0

    def __init__(
        self,
        value: object = None,
        reason: str | None = None,
        metadata: Mapping[str, object] | None = None,
        parts: Mapping[str, object] | None = None,
        **more: Unpack[_ScoreFields],
    ) -> None:
        """`value` and `parts` may be any numbers: bool (0 or 1), Decimal, Fraction, scalars of array libraries.

        Raises ValueError for what is none.
        """
        number = value if value is None or type(value) is float else as_float(value)
        given = {"value": number, "reason": reason, **more}
        if metadata:
            given["metadata"] = dict(metadata)
        if parts:
            given["parts"] = {name: as_float(part) for name, part in parts.items()}
        super().__init__(**given)


class CallTokens(Record):
    """The tokens of one model call, where the request asked for them; the names are those of a trajectory's metrics."""

    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    """Of the completion's tokens."""
    top_logprobs: list[JsonObject] | None = None
    """By token: `token`, `logprob` and the likeliest others."""


class ModelCall(Record):
    """One call of the model inside a rollout."""

    started_ms: float
    """Milliseconds after the rollout's start."""
    duration_ms: float
    usage: Usage = Field(default_factory=Usage)
    finish_reason: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    """Which build and configuration of the model answered, as the provider names it (`system_fingerprint`)."""
    retries: int = 0
    cached: bool = False
    error: str | None = None
    tokens: CallTokens | None = Field(default=None, exclude=True)
    """Not part of a stored rollout: a journal keeps it beside, in `tokens.jsonl`."""


class RolloutStatus(str, Enum):
    SUCCESS = "success"
    """The agent finished; scores may still have failed, each says so itself."""
    FAILED = "failed"
    """`failure` says where and why."""
    SKIPPED = "skipped"
    """The rollout asked to be left out of every mean (`remove_sample`)."""


class Rollout(Record):
    """One attempt at one row. Its key within a run is (`step`, `row_key`, `attempt`)."""

    rollout_id: str
    row_index: int
    """Zero-based index in the dataset file: where the row stood, for people."""
    attempt: int
    """Zero-based; pass@k draws from the attempts of one row."""
    step: int = 0
    """Of a training run; 0 elsewhere."""
    row_key: str | None = None
    """Which row it is, wherever it stands (`records.keys`); None in what version 1.0 wrote."""
    status: RolloutStatus
    messages: list[Message] = Field(default_factory=list)
    """The whole conversation, tool calls and results included."""
    tools: list[JsonObject] | None = None
    """The tools that the model was offered, as they were sent with the last call that offered any."""
    scores: dict[str, Score] = Field(default_factory=dict)
    failure: Failure | None = None
    finish_reason: str | None = None
    answer_issue: AnswerIssue | None = None
    """Of a rollout that succeeded: counted and shown beside its score."""
    groups: dict[str, str] = Field(default_factory=dict)
    """The values of the row's columns by which figures are grouped."""
    usage: Usage = Field(default_factory=Usage)
    calls: list[ModelCall] = Field(default_factory=list)
    num_tool_calls: int = 0
    duration_ms: float = 0.0
    """Time of the attempt itself, queueing excluded."""
    started_at: datetime = Field(default_factory=utc_now)
    model: str | None = None
    """Which model answered, when several are compared."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Numbers the agent reported."""
    info: JsonObject = Field(default_factory=dict)
    """Anything JSON the agent wants to keep; not interpreted."""
    hashes: dict[str, str] = Field(default_factory=dict)
    """What the result depends on: `agent`, `row`, `sampling`, `score`; resume compares them."""

    def to_line(self) -> bytes:
        return orjson.dumps(self._line(), default=_stored, option=_LINE)

    def _line(self) -> dict[str, Any]:
        """What a line holds. The records that every rollout has are made plain here: asked for each, the JSON library
        takes five times as long."""
        fields = _said(self)
        usage = fields["usage"]
        plain_usage = fields["usage"] = _stored(usage)
        fields["status"] = fields["status"]._value_  # `value` is two calls
        scores, calls = fields["scores"], fields["calls"]
        if scores:
            fields["scores"] = {name: _stored(score) for name, score in scores.items()}
        if calls:
            fields["calls"] = stored = [_stored(call) for call in calls]
            for call in stored:
                call["usage"] = plain_usage if call["usage"] is usage else _stored(call["usage"])
        return fields

    @property
    def key(self) -> Key:
        return (self.step, self.row_key or place_key(self.row_index), self.attempt)

    @property
    def place(self) -> tuple[int, int]:
        """Row index and attempt: how people and pages ask for it."""
        return (self.row_index, self.attempt)

    def value(self, name: str) -> float | None:
        score = self.scores.get(name)
        return score.value if score else None


_LINE = orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE


def _stored(record: object) -> dict[str, Any]:
    """What a journal line holds of a rollout and the records in it: as `model_dump_json` writes it, which takes four
    times as long."""
    if not isinstance(record, Record):
        raise TypeError(f"a {type(record).__name__} has no place in a rollout")
    fields = _said(record)
    fields.pop("tokens", None)
    return fields


def _said(record: Record) -> dict[str, Any]:
    """The fields that have a value. Only those that can be None are looked at: most cannot."""
    fields = vars(record).copy()
    for name in _may_be_none(type(record)):
        if fields[name] is None:
            del fields[name]
    return fields


@cache
def _may_be_none(kind: type[Record]) -> tuple[str, ...]:
    """The fields that have no value unless they are given one."""
    return tuple(name for name, field in kind.model_fields.items() if field.default is None)
