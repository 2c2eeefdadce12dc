"""What the trainer tells the job, in order and numbered, so that nothing is lost when the connection is."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from osmosis.records.base import Record


class Collect(Record):
    """Run these rollouts now, and post them as a `Batch`."""

    type: Literal["collect"] = "collect"
    step: int
    """The step they are for. A validation has the number of the step whose weights it judges, 0 before the first."""
    kind: Literal["train", "validation"]
    rows: list[int]
    """Row indices, each once."""
    samples_per_row: int


class StepMetrics(Record):
    """The figures of a step. A key comes at most once per step."""

    type: Literal["metrics"] = "metrics"
    step: int
    values: dict[str, float]


class Checkpointed(Record):
    """A checkpoint is on the disk, complete."""

    type: Literal["checkpoint"] = "checkpoint"
    step: int
    path: str
    kind: Literal["regular", "stop", "final"]
    reward: float | None = None
    """Mean validation reward of these weights; without validation rows, mean reward of the step's rollouts."""
    best: bool = False
    """Whether it is the best so far by that reward."""
    removed: list[str] = Field(default_factory=list)
    """Paths of older checkpoints that were removed for it (`keep`)."""


class Notice(Record):
    """Something a person should know; training goes on."""

    type: Literal["notice"] = "notice"
    step: int
    message: str


class Failed(Record):
    """Training cannot go on. The last event."""

    type: Literal["failed"] = "failed"
    category: Literal["model", "memory", "data", "diverged", "engine", "bug"]
    """`model`: the base model or its tokenizer cannot be used; `memory`: it does not fit; `data`: rows or examples;
    `diverged`: a loss or gradient that is no number; `engine`: a server behind the trainer; `bug`: ours."""
    message: str
    fix: str | None = None
    step: int = 0
    traceback: str | None = None


class Done(Record):
    """All steps are done, or a stop was asked for. The last event."""

    type: Literal["done"] = "done"
    step: int
    stopped: bool = False


Event = Annotated[Collect | StepMetrics | Checkpointed | Notice | Failed | Done, Field(discriminator="type")]


class Numbered(Record):
    """An event and its number, from 1."""

    number: int
    event: Event


class ModelFacts(Record):
    """What was loaded."""

    architecture: str
    parameters: int
    trainable_parameters: int
    context_length: int | None = None
    dtype: str
    device: str
    chat_template: bool
    tool_calls: Literal["template", "json"]
    """How answers are read."""
    cache_tokens: int | None = None
    """Tokens that fit into the key-value cache."""
    versions: dict[str, str] = Field(default_factory=dict)


class TrainerHealth(Record):
    """How the trainer is doing."""

    state: Literal["loading", "ready", "training", "failed", "done"]
    run: str
    step: int = 0
    """The last finished step."""
    model: ModelFacts | None = None
    """None until it is loaded."""
    peak_memory_bytes: int = 0
    requests_in_flight: int = 0
    requests_done: int = 0
    last_event: int = 0
    """Number of the newest event."""
