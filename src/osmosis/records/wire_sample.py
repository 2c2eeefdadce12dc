"""A graded rollout as generations 0.3 and 0.4 of the protocol carry it: the one message of theirs that the SDK itself
makes, so that a run without a server loads no other."""

from __future__ import annotations

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .base import Record
from .rollout import Message


class WireSample(Record):
    """What a rollout produced, as graded."""

    messages: list[Message] = Field(default_factory=list)
    label: str | None = None
    reward: float | None = None
    """None when grading failed or the sample is to be left out."""
    reason: str | None = None
    """Why the grader gave that reward; ours, and left out when there is none."""
    parts: dict[str, float] | None = None
    """What the reward is made of; ours, and left out when there are none."""
    remove_sample: bool = False
    metrics: JsonObject = Field(default_factory=dict)
    extra_fields: JsonObject = Field(default_factory=dict)
