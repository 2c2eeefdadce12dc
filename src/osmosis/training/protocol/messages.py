from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Annotated, Literal

import orjson
from pydantic import Field, model_validator

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record
from osmosis.records.run.rollout import Message


class Example(Record):
    """One conversation to imitate: exact tokens where they are known, else messages, which the trainer renders."""

    messages: list[Message] = Field(default_factory=list)
    tools: list[JsonObject] | None = None
    token_ids: list[int] = Field(default_factory=list)
    mask: list[int] = Field(default_factory=list)  # as long as `token_ids`: 1 = trained on
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
    """The step whose weights a validation judges; 0 before the first step."""
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
    """The conversation's tokens as they were sampled: rendering it again may spell an earlier answer differently."""

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
    """The reader of the answer: the tokenizer's response template, `<tool_call>` JSON, or nothing but the text."""
    malformed_calls: int = 0
    held: bool = False
    repaired: bool = False
    """True when the chat template alone would have written other tokens over those that were held."""
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
    category: str  # a value of `Category`
    message: str


class SampleLine(Record):
    """One line of the answer to `/sample`: exactly one of the three is there."""

    delta: SampleDelta | None = None
    done: SampledAnswer | None = None
    error: SampleError | None = None


Kind = Literal["train", "validation"]


@dataclass(slots=True)
class Sequence:
    """Tokens of one rollout, or of a part of it; each part has the reward of the whole. Raise `ValueError`."""

    row: int
    attempt: int
    token_ids: array[int]
    prompt_length: int
    mask: bytes  # one number per token after the prompt: 1 for the model's tokens, 0 for the environment's
    logprobs: array[float]  # log-probabilities of the tokens after the prompt, as sampled; 0.0 where the mask is 0
    reward: float | None  # None: unscorable (failed, timed out); outside every statistic of its group
    part: int = 0
    truncated: bool = False

    def __post_init__(self) -> None:
        where = f"row {self.row}, attempt {self.attempt}"
        if not isinstance(self.token_ids, array):
            self.token_ids = array("i", self.token_ids)
        if not isinstance(self.logprobs, array):
            self.logprobs = array("f", self.logprobs)
        self.mask = bytes(self.mask)
        rest = len(self.token_ids) - self.prompt_length
        if self.prompt_length < 0 or len(self.mask) != rest or len(self.logprobs) != rest:
            raise ValueError(
                f"{where}: {rest} tokens follow the prompt, but there are "
                f"{len(self.mask)} mask values and {len(self.logprobs)} logprobs"
            )
        if self.mask.strip(b"\0\1"):
            raise ValueError(f"{where}: mask values are 0 or 1")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"{where}: the reward {self.reward} is no number")

    @property
    def sampled(self) -> int:
        return self.mask.count(1)


@dataclass(slots=True)
class Batch:
    """The answer to a `collect`. A rollout without a sequence counts as failed before its first answer."""

    step: int
    kind: Kind
    sequences: list[Sequence]
    rows: list[int] = field(default_factory=list)
    """One for each group, in their order; empty: as asked for. Attempts of a second group of a row go on counting."""

    def parts(self) -> dict[tuple[int, int], list[Sequence]]:
        parts: dict[tuple[int, int], list[Sequence]] = defaultdict(list)
        for sequence in sorted(self.sequences, key=lambda sequence: sequence.part):
            parts[sequence.row, sequence.attempt].append(sequence)
        return parts

    @property
    def rewards(self) -> list[tuple[int, float]]:
        firsts = (parts[0] for parts in self.parts().values())
        return [(first.row, first.reward) for first in firsts if first.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        return statistics.fmean(reward for _, reward in self.rewards) if self.rewards else None

    def to_bytes(self) -> bytes:
        # A line of JSON, then three arrays: a third of the size of JSON, which kept an event loop busy for seconds.
        heads = [
            [s.row, s.attempt, s.part, len(s.token_ids), s.prompt_length, s.reward, s.truncated] for s in self.sequences
        ]
        head = orjson.dumps({"step": self.step, "kind": self.kind, "rows": self.rows, "sequences": heads})
        tokens = b"".join(s.token_ids.tobytes() for s in self.sequences)
        logprobs = b"".join(s.logprobs.tobytes() for s in self.sequences)
        return b"".join((head, b"\n", tokens, logprobs, *(s.mask for s in self.sequences)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Read what `to_bytes` wrote on the same machine. Raise `ValueError`."""
        end = data.find(b"\n")
        try:
            head = orjson.loads(data[: max(0, end)])
            heads = [(*map(int, values[:5]), *values[5:7]) for values in head["sequences"]]
            step, kind, rows = int(head["step"]), head["kind"], [int(row) for row in head["rows"]]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"the head of the batch cannot be read: {error}") from error
        if kind not in ("train", "validation"):
            raise ValueError(f"a batch of kind {kind!r}")
        lengths = [(length, length - prompt) for _, _, _, length, prompt, _, _ in heads]
        total, rest = sum(length for length, _ in lengths), sum(rest for _, rest in lengths)
        view = memoryview(data)[end + 1 :]
        if len(view) != 4 * total + 5 * rest or any(length < 0 or left < 0 for length, left in lengths):
            raise ValueError(f"the batch has {len(view)} bytes of arrays instead of {4 * total + 5 * rest}")
        tokens, logprobs, masks = array("i"), array("f"), view[4 * total + 4 * rest :]
        tokens.frombytes(view[: 4 * total])
        logprobs.frombytes(view[4 * total : 4 * total + 4 * rest])
        sequences, at, after = [], 0, 0
        for (row, attempt, part, length, prompt, reward, truncated), (_, left) in zip(heads, lengths, strict=True):
            sequences.append(
                Sequence(
                    row=row,
                    attempt=attempt,
                    part=part,
                    token_ids=tokens[at : at + length],
                    prompt_length=prompt,
                    mask=bytes(masks[after : after + left]),
                    logprobs=logprobs[after : after + left],
                    reward=reward,
                    truncated=bool(truncated),
                )
            )
            at, after = at + length, after + left
        return cls(step, kind, sequences, rows)
