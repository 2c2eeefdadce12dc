"""The rollouts of a step as token sequences, and their binary form: a line of JSON, then three arrays of numbers. A
step of 512 rollouts of 8,000 tokens is 37 MB in this form, written and read at the speed of memory; as JSON it was
three times the size and kept an event loop busy for seconds."""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

import orjson

Kind = Literal["train", "validation"]


@dataclass(slots=True)
class Sequence:
    """Tokens of one rollout: a prompt, then the turns of model and environment. A rollout whose history was rewritten
    has several, its parts; each has the reward of the whole. Raise `ValueError` when the arrays do not fit together."""

    row: int
    attempt: int
    token_ids: array[int]
    prompt_length: int
    mask: bytes
    """One number per token after the prompt: 1 for the model's tokens, 0 for the environment's."""
    logprobs: array[float]
    """Log-probabilities of the tokens after the prompt, as sampled; 0.0 where the mask is 0."""
    reward: float | None
    """None: unscorable (failed, timed out); outside every statistic of its group."""
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
        """Return row and reward of each rollout that has one."""
        firsts = (parts[0] for parts in self.parts().values())
        return [(first.row, first.reward) for first in firsts if first.reward is not None]

    @property
    def mean_reward(self) -> float | None:
        return statistics.fmean(reward for _, reward in self.rewards) if self.rewards else None

    def to_bytes(self) -> bytes:
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
