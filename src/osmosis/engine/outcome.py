"""A stored rollout as far as figures and resume need it: the fields have the names and types of `Rollout`'s.

Read by msgspec straight from a journal line, which builds nothing of the rest (the conversation is most of a line)
and checks the types: a hundred thousand validated records would make a resume slow. Nothing is written from here, and
a run that resumes nothing does not import this module.
"""

from __future__ import annotations

import msgspec

from osmosis.records.rollout import Category, Phase, RolloutStatus


class StoredFailure(msgspec.Struct, gc=False):
    phase: Phase
    category: Category
    message: str = ""


class StoredUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


class StoredScore(msgspec.Struct, gc=False):
    value: float | None = None
    failure: StoredFailure | None = None
    usage: StoredUsage | None = None


class Outcome(msgspec.Struct, gc=False):
    row_index: int
    attempt: int
    status: RolloutStatus
    step: int = 0
    row_key: str | None = None
    scores: dict[str, StoredScore] = {}
    failure: StoredFailure | None = None
    usage: StoredUsage = msgspec.field(default_factory=StoredUsage)
    duration_ms: float = 0.0
    hashes: dict[str, str] = {}


_decode = msgspec.json.Decoder(Outcome).decode


def read_outcome(line: bytes) -> Outcome:
    """Of a journal line as it stands; raises ValueError when it is not one."""
    try:
        return _decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
