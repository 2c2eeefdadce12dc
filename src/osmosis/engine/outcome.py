"""What the figures need to know of a rollout, and nothing else: small enough to make for every line of a journal.

Reads both a `Rollout` and a journal line that was only parsed: validating a hundred thousand lines again would
make a resume slow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from osmosis.records.rollout import Rollout, RolloutStatus

FailureKey = tuple[str, str]
"""Phase and category."""


@dataclass(slots=True)
class Outcome:
    row_index: int
    attempt: int
    status: str
    scores: dict[str, float | None]
    failures: list[tuple[FailureKey, str]] = field(default_factory=list)
    """The rollout's own and its scores', each with a message."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    judge: tuple[int, int, float | None] | None = None
    """Prompt tokens, completion tokens and cost of judges."""
    duration_ms: float = 0.0


def outcome_of(rollout: Rollout) -> Outcome:
    """Of a finished rollout."""
    found = Outcome(
        rollout.row_index,
        rollout.attempt,
        rollout.status.value,
        {name: score.value for name, score in rollout.scores.items()},
        prompt_tokens=rollout.usage.prompt_tokens,
        completion_tokens=rollout.usage.completion_tokens,
        cached_tokens=rollout.usage.cached_tokens,
        cost_usd=rollout.usage.cost_usd,
        duration_ms=rollout.duration_ms,
    )
    if rollout.failure:
        found.failures.append(((rollout.failure.phase.value, rollout.failure.category.value), rollout.failure.message))
    for score in rollout.scores.values():
        if score.failure:
            found.failures.append(((score.failure.phase.value, score.failure.category.value), score.failure.message))
        if score.usage:
            _judged(found, score.usage.prompt_tokens, score.usage.completion_tokens, score.usage.cost_usd)
    return found


def outcome_of_line(line: dict[str, Any]) -> Outcome:
    """Of a parsed journal line; raises KeyError, TypeError or AttributeError when it is none."""
    usage = line.get("usage") or {}
    scores: dict[str, dict[str, Any]] = line.get("scores") or {}
    found = Outcome(
        line["row_index"],
        line["attempt"],
        line["status"],
        {name: score.get("value") for name, score in scores.items()},
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=usage.get("cached_tokens", 0),
        cost_usd=usage.get("cost_usd"),
        duration_ms=line.get("duration_ms", 0.0),
    )
    failure = line.get("failure")
    if failure:
        found.failures.append(((failure["phase"], failure["category"]), failure["message"]))
    for score in scores.values():
        failure = score.get("failure")
        if failure:
            found.failures.append(((failure["phase"], failure["category"]), failure["message"]))
        judge = score.get("usage")
        if judge:
            _judged(found, judge.get("prompt_tokens", 0), judge.get("completion_tokens", 0), judge.get("cost_usd"))
    return found


def _judged(found: Outcome, prompt: int, completion: int, cost: float | None) -> None:
    before = found.judge or (0, 0, None)
    costs = [c for c in (before[2], cost) if c is not None]
    found.judge = (before[0] + prompt, before[1] + completion, sum(costs) if costs else None)


SUCCESS = RolloutStatus.SUCCESS.value
SKIPPED = RolloutStatus.SKIPPED.value
