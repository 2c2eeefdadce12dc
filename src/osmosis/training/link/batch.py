"""What the job hands back: the rollouts of a step as tokens with mask and reward, and the examples of a warm start."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from osmosis.base.json_types import JsonObject
from osmosis.records.base import Record
from osmosis.records.rollout import Message


class Sequence(Record):
    """Tokens of one rollout in one unbroken line: a prompt, then what model and environment said in turn.

    A rollout whose history was rewritten has several, its parts; each has the reward of the whole.
    """

    row: int
    attempt: int
    """From 0, below `samples_per_row`."""
    part: int = 0
    token_ids: list[int]
    """Prompt first."""
    prompt_length: int = Field(ge=0)
    mask: list[int]
    """Of what follows the prompt: 1 where the model spoke, 0 where the environment did."""
    logprobs: list[float]
    """Of what follows the prompt, as sampled; 0.0 where the mask is 0."""
    reward: float | None
    """None: unscorable (failed, timed out); outside every statistic of its group."""
    truncated: bool = False
    """Whether an answer in it was ended by a length limit."""

    @model_validator(mode="after")
    def _lengths(self) -> Sequence:
        rest = len(self.token_ids) - self.prompt_length
        if len(self.mask) != rest or len(self.logprobs) != rest:
            raise ValueError(
                f"row {self.row}, attempt {self.attempt}: {rest} tokens follow the prompt, but there are "
                f"{len(self.mask)} mask values and {len(self.logprobs)} logprobs"
            )
        if set(self.mask) - {0, 1}:
            raise ValueError(f"row {self.row}, attempt {self.attempt}: mask values are 0 or 1")
        return self


class Batch(Record):
    """The answer to a `collect`. A rollout without a sequence counts as failed before its first answer."""

    step: int
    kind: Literal["train", "validation"]
    sequences: list[Sequence]


class Example(Record):
    """One conversation to imitate: exact tokens where they are known, else messages, which the trainer renders.

    Every answer of the assistant in `messages` is trained on, nothing else is.
    """

    messages: list[Message] = Field(default_factory=list)
    tools: list[JsonObject] | None = None
    token_ids: list[int] = Field(default_factory=list)
    mask: list[int] = Field(default_factory=list)
    """As long as `token_ids`: 1 = trained on."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Example:
        if len(self.mask) != len(self.token_ids):
            raise ValueError(f"{len(self.token_ids)} tokens, but {len(self.mask)} mask values")
        if not self.token_ids and not self.messages:
            raise ValueError("an example needs token_ids or messages")
        return self
