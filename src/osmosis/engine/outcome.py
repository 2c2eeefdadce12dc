"""A stored rollout as far as figures and resume need it: the fields have the names and types of `Rollout`'s.

Read by msgspec straight from a journal line, which builds nothing of the rest (the conversation is most of a line)
and checks the types: a hundred thousand validated records would make a resume slow. Nothing is written from here, and
a run that resumes nothing does not import this module.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from osmosis.records.rollout import LARGEST_SCORE, AnswerIssue, Category, Phase, RolloutStatus


class StoredFailure(msgspec.Struct, gc=False):
    phase: Phase
    category: Category
    message: str = ""


class StoredUsage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = None


class StoredScore(msgspec.Struct, gc=False):
    value: Annotated[float, msgspec.Meta(ge=-LARGEST_SCORE, le=LARGEST_SCORE)] | None = None
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
    finish_reason: str | None = None
    answer_issue: AnswerIssue | None = None
    groups: dict[str, str] = {}


class _AnyScore(msgspec.Struct, gc=False):
    value: float | None = None
    failure: StoredFailure | None = None
    usage: StoredUsage | None = None


class _WithAnyScore(Outcome, gc=False):
    scores: dict[str, _AnyScore] = {}  # type: ignore[assignment]  # narrower on purpose


_decode = msgspec.json.Decoder(Outcome).decode
_decode_any = msgspec.json.Decoder(_WithAnyScore).decode


def read_outcome(line: bytes) -> Outcome:
    """Of a journal line as it stands; raises ValueError when it is not one."""
    try:
        return _decode(line)
    except msgspec.MsgspecError as error:
        try:
            return _without_impossible_scores(_decode_any(line))
        except msgspec.MsgspecError:
            raise ValueError(str(error)) from error


def _without_impossible_scores(found: _WithAnyScore) -> Outcome:
    """An earlier version stored scores of which no mean can be computed: they are failures now."""
    for score in found.scores.values():
        if score.value is not None and abs(score.value) > LARGEST_SCORE:
            message = f"the score {score.value:g} is beyond {LARGEST_SCORE:g}"
            score.value, score.failure = None, StoredFailure(Phase.SCORE, Category.INVALID_SCORE, message)
    return found
