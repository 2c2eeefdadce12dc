"""The figures of a run that is still going, from those of its shards: sums, and means weighted by what they are over.

For a page that shows how far it is. What needs all rollouts at once (intervals, percentiles, pass@k) is made from them
when the run is over, by `summary`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osmosis.records.report import Report, ScoreReport
from osmosis.records.rollout import Usage


def together(reports: Sequence[Report], *, rows: int) -> Report:
    """The running report of all shards; `rows` are those of the run, also of shards that have not begun."""
    first = reports[0]
    total = max(rows * first.attempts, sum(one.completed for one in reports))
    names = list(dict.fromkeys(score.name for one in reports for score in one.scores))
    scores = [_score(name, reports) for name in names]
    scored = scores[0].scored if scores else sum(one.succeeded for one in reports)
    return Report(
        rows=rows,
        attempts=first.attempts,
        pass_threshold=first.pass_threshold,
        total=total,
        completed=sum(one.completed for one in reports),
        succeeded=sum(one.succeeded for one in reports),
        failed=sum(one.failed for one in reports),
        skipped=sum(one.skipped for one in reports),
        coverage=scored / total if total else 0.0,
        scores=scores,
        usage=_usage([one.usage for one in reports]),
        judge_usage=_usage([one.judge_usage for one in reports]),
        duration_ms=max(one.duration_ms for one in reports),
    )


def _score(name: str, reports: Sequence[Report]) -> ScoreReport:
    """Where a shard has no such score, its rollouts have failed it."""
    found = [score for one in reports for score in one.scores if score.name == name]
    without = [one for one in reports if all(score.name != name for score in one.scores)]
    missing = sum(one.succeeded + one.failed for one in without)
    scored, passed = sum(score.scored for score in found), sum(score.passed for score in found)
    failed = sum(score.failed for score in found) + missing
    lows = [score.min for score in found if score.min is not None]
    highs = [score.max for score in found if score.max is not None]
    return ScoreReport(
        name=name,
        mean=_mean(found, lambda one: one.mean, lambda one: one.scored + one.failed, missing),
        mean_scored=_mean(found, lambda one: one.mean_scored, lambda one: one.scored),
        min=min(lows, default=None),
        max=max(highs, default=None),
        passed=passed,
        scored=scored,
        failed=failed,
        pass_rate=passed / (scored + failed) if scored + failed else None,
    )


def _mean(
    scores: Sequence[ScoreReport],
    value: Callable[[ScoreReport], float | None],
    weight: Callable[[ScoreReport], int],
    more: int = 0,
) -> float | None:
    """Weighted; `more` count as 0.0."""
    known = [(found, weight(score)) for score in scores if (found := value(score)) is not None]
    over = sum(count for _, count in known) + more
    return sum(found * count for found, count in known) / over if over else None


def _usage(spent: Sequence[Usage]) -> Usage:
    costs = [one.cost_usd for one in spent if one.cost_usd is not None]
    return Usage(
        prompt_tokens=sum(one.prompt_tokens for one in spent),
        completion_tokens=sum(one.completion_tokens for one in spent),
        cached_tokens=sum(one.cached_tokens for one in spent),
        cache_write_tokens=sum(one.cache_write_tokens for one in spent),
        reasoning_tokens=sum(one.reasoning_tokens for one in spent),
        cost_usd=sum(costs) if costs else None,
    )
