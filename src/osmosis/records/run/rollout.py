import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Literal, TypedDict

from pydantic import Field
from typing_extensions import Unpack

from osmosis.base.jsonable import JsonObject, as_float
from osmosis.records.base import Record, utc_now
from osmosis.records.run.rows import Key, place_key

Message = JsonObject  # One chat message in the OpenAI shape (`role`, `content`, `tool_calls`, `tool_call_id`, ...)
Messages = list[Message]

AnswerIssue = Literal["filtered", "refused", "truncated", "empty"]  # Problem of an answer without a failure


class Phase(str, Enum):
    """The phase in which a rollout failed."""

    SETUP = "setup"  # Environment, rollout server or model not usable
    AGENT = "agent"  # While the agent or workflow ran
    MODEL = "model"  # In a model call that ended the agent
    SCORE = "score"  # In a score function, rubric or grader


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
        return self not in (Category.AGENT_ERROR, Category.SCORE_ERROR, Category.INVALID_SCORE)


class Usage(Record):
    """Tokens and money. Adds up: `Usage() + call.usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens read from the provider's cache."""
    cache_write_tokens: int = 0
    """Prompt tokens written to the provider's cache, at a price of their own."""
    reasoning_tokens: int = 0
    """Completion tokens of reasoning, not part of the answer."""
    cost_usd: float | None = None
    """US dollars; None: unknown price, not free."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        tokens = {name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields if name != "cost_usd"}
        return Usage(**tokens, cost_usd=sum(costs) if costs else None)


USER_METRICS = ("user_prompt_tokens", "user_completion_tokens", "user_cost_usd")
"""Metrics of a rollout in which the usage of its simulated users travels."""


def user_metrics(usage: Usage) -> dict[str, float]:
    spent = (usage.prompt_tokens, usage.completion_tokens, usage.cost_usd)
    return {name: value for name, value in zip(USER_METRICS, spent, strict=True) if value is not None}


class Failure(Record):
    """Why there is no result. Data, never an exception that ends a run."""

    phase: Phase
    category: Category
    message: str
    """One paragraph; secrets redacted."""
    traceback: str | None = None
    """The last frames, redacted; None when there is no Python exception behind it."""
    fix: str | None = None
    """The next thing to do, when known."""


LARGEST_SCORE = 1e50  # Largest score, so that sums of squares over any number of rollouts stay finite


class _ScoreFields(TypedDict, total=False):
    name: str
    failure: Failure | None
    usage: Usage | None
    duration_ms: float
    replied: float | None


class Score(Record):
    """One judgement of one rollout. A score function may return it: `Score(0.5, "right, but not as JSON")`."""

    name: str = ""
    """The function as given (`rewards:compute_reward`), with `.KEY` for one of several that it returned, or `reward`
    for the grader's own. A score function leaves it out.
    """
    value: float | None = None
    """Missing (None) when scoring failed: a failure is never a zero."""
    reason: str | None = None
    """Explanation, shown beside the value."""
    metadata: JsonObject | None = None
    """Any JSON to keep beside it; not interpreted."""
    parts: dict[str, float] | None = None
    """Components of the value: shown beside it, not added up."""
    failure: Failure | None = None
    usage: Usage | None = None
    """Tokens and cost of a judge, apart from the agent's usage."""
    duration_ms: float = 0.0
    replied: float | None = None
    """The judge's own number where it was out of range: `value` is the bound that is nearest."""

    def __init__(
        self,
        value: object = None,
        reason: str | None = None,
        metadata: Mapping[str, object] | None = None,
        parts: Mapping[str, object] | None = None,
        **more: Unpack[_ScoreFields],
    ) -> None:
        """Accept numbers of any type (bool, Decimal, Fraction, array scalars); raise ValueError for anything else."""
        number = value if value is None or type(value) is float else as_float(value)
        fields = {"value": number, "reason": reason, **more}
        if metadata:
            fields["metadata"] = dict(metadata)
        if parts:
            fields["parts"] = {name: as_float(part) for name, part in parts.items()}
        super().__init__(**fields)


class CallTokens(Record):
    """The tokens of one model call, where the request asked for them; the names are those of a trajectory's metrics."""

    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    top_logprobs: list[JsonObject] | None = None
    """For each token: `token`, `logprob` and the likeliest others."""


@dataclass(slots=True)
class Completion:
    message: Message
    finish_reason: str | None
    usage: Usage
    model: str | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None
    top_logprobs: list[JsonObject] | None = None
    """The endpoint's log-probabilities by token: `token`, `logprob` and the likeliest others (`top_logprobs`)."""
    choices: list[JsonObject] = field(default_factory=list)
    """Every answer in the wire form, where more than one was asked for (`n`); `message` is the first."""
    fingerprint: str | None = None
    retries: int = 0
    cached: bool = False
    raw_id: str | None = None

    @property
    def tokens(self) -> CallTokens | None:
        prompt, completion = self.prompt_token_ids, self.token_ids
        logprobs, top = self.logprobs, self.top_logprobs
        if not (prompt or completion or logprobs or top):
            return None
        return CallTokens.model_construct(
            prompt_token_ids=prompt, completion_token_ids=completion, logprobs=logprobs, top_logprobs=top
        )


def is_result(message: Message) -> bool:
    return message.get("role") in ("tool", "function")


class ModelCall(Record):
    started_ms: float
    """Milliseconds after the rollout's start."""
    duration_ms: float
    usage: Usage = Field(default_factory=Usage)
    finish_reason: str | None = None
    model: str | None = None
    fingerprint: str | None = None
    """Build and configuration of the model, as the provider names it (`system_fingerprint`)."""
    retries: int = 0
    cached: bool = False
    error: str | None = None
    purpose: str | None = None
    """Its purpose, when not the agent's own work: `title`, `router`, `probe`, `compaction`, `subagent`; or `retry`,
    when its answer was never used."""
    tokens: CallTokens | None = Field(default=None, exclude=True)
    """Not part of a stored rollout: a journal keeps it beside, in `tokens.jsonl`."""


class RolloutStatus(str, Enum):
    SUCCESS = "success"
    """The agent finished; each score says whether it failed."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """The rollout asked to be left out of every mean (`remove_sample`)."""


class Rollout(Record):
    """One attempt at one row. Its key within a run is (`step`, `row_key`, `attempt`)."""

    rollout_id: str
    row_index: int
    """Zero-based index of the row in the dataset file at that time, for people."""
    attempt: int
    """Zero-based; pass@k draws from the attempts of one row."""
    step: int = 0
    """Step of a training run; 0 elsewhere."""
    row_key: str | None = None
    """Key of the row, wherever it stands; None in rollouts of version 1.0."""
    status: RolloutStatus
    messages: list[Message] = Field(default_factory=list)
    """The whole conversation, tool calls and results included."""
    tools: list[JsonObject] | None = None
    """Tools offered to the model, as sent with the last call that offered any."""
    scores: dict[str, Score] = Field(default_factory=dict)
    failure: Failure | None = None
    finish_reason: str | None = None
    answer_issue: AnswerIssue | None = None
    """Problem of a successful rollout's answer: counted and shown beside its score."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Values of the row's columns by which figures are grouped."""
    usage: Usage = Field(default_factory=Usage)
    calls: list[ModelCall] = Field(default_factory=list)
    num_tool_calls: int = 0
    duration_ms: float = 0.0
    """Milliseconds of the attempt itself, without queueing."""
    started_at: datetime = Field(default_factory=utc_now)
    model: str | None = None
    """Model that answered, when several are compared."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Numbers the agent reported."""
    info: JsonObject = Field(default_factory=dict)
    """Any JSON the agent wants to keep; not interpreted."""
    hashes: dict[str, str] = Field(default_factory=dict)
    """Hashes of `agent`, `row`, `sampling` and `score`, on which the result depends; resume compares them."""

    @property
    def key(self) -> Key:
        return (self.step, self.row_key or place_key(self.row_index), self.attempt)

    @property
    def place(self) -> tuple[int, int]:
        return (self.row_index, self.attempt)

    @property
    def first_failure(self) -> Failure | None:
        return self.failure or next((score.failure for score in self.scores.values() if score.failure), None)

    @property
    def user_usage(self) -> Usage | None:
        """Return tokens and cost of its simulated users, apart from the agent's; None without one."""
        prompt, completion, cost = (self.metrics.get(name) for name in USER_METRICS)
        if prompt is None or completion is None:
            return None
        return Usage(prompt_tokens=int(prompt), completion_tokens=int(completion), cost_usd=cost)

    @property
    def own_calls(self) -> list[ModelCall]:
        """Return the answered calls of the agent's own work: its steps."""
        return [call for call in self.calls if call.error is None and call.purpose is None]

    @property
    def answers(self) -> list[int]:
        """Return the number of the message that each of its steps left; none where the conversation lacks some."""
        answers = [i for i, message in enumerate(self.messages) if message.get("role") == "assistant"]
        return answers if len(answers) == len(self.own_calls) else []

    def find_result(self, step: int) -> int | None:
        """Return the number of the last tool result since the answer before a step, counted from 1."""
        numbers = range(self.answers[step - 2] if step > 1 else 0, self.answers[step - 1])
        return max((i for i in numbers if is_result(self.messages[i])), default=None)

    def value(self, name: str) -> float | None:
        score = self.scores.get(name)
        return score.value if score else None


SHOWN_IMAGES = ("data:image/png;", "data:image/jpeg;", "data:image/gif;", "data:image/webp;")
"""Inline images that are shown; others are only named, because a page loads nothing from elsewhere."""


@dataclass(frozen=True, slots=True)
class CitedSource:
    title: str
    url: str  # Empty for anything but an http address


def get_reasoning(message: Message) -> str:
    reasoning = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking_blocks") or ""
    if isinstance(reasoning, list):
        texts = [part.get("thinking") or part.get("text") for part in reasoning if isinstance(part, dict)]
        reasoning = "\n".join(text for text in texts if isinstance(text, str)) or reasoning
    return reasoning if isinstance(reasoning, str) else json.dumps(reasoning, ensure_ascii=False, indent=2, default=str)


def list_functions(message: Message) -> list[JsonObject]:
    """Return the functions of the message's tool calls: name and arguments as the model wrote them."""
    calls = message.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return [function for function in functions if isinstance(function, dict)]


def image_url(part: object) -> str:
    image = part.get("image_url") if isinstance(part, dict) else None
    image = image.get("url") if isinstance(image, dict) else image
    return image if isinstance(image, str) else ""


def list_images(message: Message) -> list[str]:
    content, images = message.get("content"), message.get("images")
    parts = [*(content if isinstance(content, list) else ()), *(images if isinstance(images, list) else ())]
    return [url for part in parts if (url := image_url(part))]


def list_sources(message: Message) -> list[CitedSource]:
    annotations = message.get("annotations")
    entries = annotations if isinstance(annotations, list) else ()
    return [_source(annotation) for annotation in entries if isinstance(annotation, dict)]


def _source(annotation: Message) -> CitedSource:
    kind = str(annotation.get("type") or "annotation")
    inner = annotation.get(kind)
    facts = inner if isinstance(inner, dict) else annotation
    url = str(facts.get("url") or "")
    title = facts.get("title") or facts.get("filename") or facts.get("file_id") or url or kind
    return CitedSource(str(title), url if url.startswith(("https://", "http://")) else "")
