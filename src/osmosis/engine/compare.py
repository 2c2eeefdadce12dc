"""Two runs side by side, paired by row and attempt: the difference with a bootstrap interval over rows, McNemar's
test for pass rates, and every flip. Pairs that one side has no score for are counted apart; a second difference has
failures as zeros, so that a run that crashes where it is hard does not look better than one that tries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from osmosis.errors import ValidationError
from osmosis.records.report import Interval
from osmosis.records.rollout import Message, RolloutStatus

from .journal import Journal
from .recorded import RecordedRollouts
from .stats import bootstrap_interval, mcnemar

Key = tuple[int, int]


@dataclass(slots=True)
class Flip:
    """One pair that passed on one side only."""

    row_index: int
    attempt: int
    before: float
    after: float

    @property
    def gained(self) -> bool:
        return self.after > self.before

    def to_dict(self) -> dict[str, Any]:
        return {
            "row_index": self.row_index,
            "attempt": self.attempt,
            "before": self.before,
            "after": self.after,
            "kind": "gained" if self.gained else "lost",
        }


@dataclass(slots=True)
class Comparison:
    """Run B against run A, for one score."""

    score: str
    pairs: int
    rows: int
    only_a: int
    """Scored on A's side alone."""
    only_b: int
    mean_a: float
    """Of the pairs, over rows."""
    mean_b: float
    difference: float
    """B minus A."""
    interval: Interval | None
    pass_rate_a: float
    pass_rate_b: float
    gained: int
    lost: int
    p_value: float
    """McNemar, exact, two-sided."""
    failed_a: int = 0
    """Pairs that both ran and only B has a score for."""
    failed_b: int = 0
    difference_failures_0: float = 0.0
    """B minus A over all pairs that both ran, failures as 0."""
    interval_failures_0: Interval | None = None
    rows_differ: int = 0
    """Rows that were edited between the runs: their pairs answer different questions."""
    flips: list[Flip] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no clear difference`, by the interval of the difference."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "no clear difference"
        return "better" if self.difference > 0 else "worse"

    def regressed(self, margin: float = 0.0) -> bool:
        """Whether B can be worse than A by more than `margin`, over what both have a score for or with failures as 0.

        With a margin of 0, only a difference that is clearly negative counts.
        """
        return _worse(self.difference, self.interval, margin) or self.fails_more(margin)

    def fails_more(self, margin: float = 0.0) -> bool:
        """Whether B is worse once its failures count as 0."""
        return self.failed_b > 0 and _worse(self.difference_failures_0, self.interval_failures_0, margin)

    def to_dict(self) -> dict[str, Any]:
        return {
            "score": self.score,
            "pairs": self.pairs,
            "rows": self.rows,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "mean_a": self.mean_a,
            "mean_b": self.mean_b,
            "difference": self.difference,
            "difference_ci": _pair(self.interval),
            "failed_a": self.failed_a,
            "failed_b": self.failed_b,
            "difference_failures_0": self.difference_failures_0,
            "difference_failures_0_ci": _pair(self.interval_failures_0),
            "pass_rate_a": self.pass_rate_a,
            "pass_rate_b": self.pass_rate_b,
            "rows_differ": self.rows_differ,
            "gained": self.gained,
            "lost": self.lost,
            "p_value": self.p_value,
            "verdict": self.verdict,
            "flips": [flip.to_dict() for flip in self.flips],
        }


def compare(a: Journal, b: Journal, *, score: str | None = None, threshold: float | None = None) -> Comparison:
    """Run `b` against run `a`. `score` defaults to the first that both have; `threshold` to run `a`'s."""
    name = score or _common_score(a, b)
    threshold = a.plan().pass_threshold if threshold is None else threshold
    rows_a: dict[int, str] = {}
    rows_b: dict[int, str] = {}
    ran_a, ran_b = _values(a, name, rows_a), _values(b, name, rows_b)
    before = {key: value for key, value in ran_a.items() if value is not None}
    after = {key: value for key, value in ran_b.items() if value is not None}
    shared = sorted(key for key in before if key in after)
    if not shared:
        raise ValidationError(
            f"the two runs have no pair with the score {name!r}",
            hint=f"compare runs over the same rows and attempts; scores: {', '.join(_score_names(a)) or 'none'}",
        )
    differ = {row for row, found in rows_a.items() if rows_b.get(row, found) != found}
    if all(row in differ for row, _ in shared):
        raise ValidationError(
            "the two runs share no row: the datasets have other rows at the same places",
            hint="compare runs over the same dataset",
        )
    flips = [
        Flip(*key, before[key], after[key]) for key in shared if (before[key] >= threshold) != (after[key] >= threshold)
    ]
    mean_a, mean_b = (_over_rows({key: side[key] for key in shared}) for side in (before, after))
    both = [key for key in ran_a if key in ran_b and (key in before or key in after)]
    zeros_a, zeros_b = (_over_rows({key: side[key] or 0.0 for key in both}) for side in (ran_a, ran_b))
    gained = sum(1 for flip in flips if flip.gained)
    n = len(shared)
    return Comparison(
        score=name,
        pairs=n,
        rows=len(mean_a),
        only_a=len(before) - n,
        only_b=len(after) - n,
        mean_a=_mean(mean_a),
        mean_b=_mean(mean_b),
        difference=_mean(mean_b) - _mean(mean_a),
        interval=bootstrap_interval([mean_b[row] - mean_a[row] for row in mean_a]),
        pass_rate_a=sum(1 for k in shared if before[k] >= threshold) / n,
        pass_rate_b=sum(1 for k in shared if after[k] >= threshold) / n,
        gained=gained,
        lost=len(flips) - gained,
        p_value=mcnemar(gained, len(flips) - gained),
        failed_a=sum(1 for key in both if key not in before),
        failed_b=sum(1 for key in both if key not in after),
        difference_failures_0=_mean(zeros_b) - _mean(zeros_a),
        interval_failures_0=bootstrap_interval([zeros_b[row] - zeros_a[row] for row in zeros_a]),
        rows_differ=len(differ & mean_a.keys()),
        flips=flips,
    )


def transcripts(a: Journal, b: Journal, flips: list[Flip]) -> Iterator[tuple[Flip, list[Message], list[Message]]]:
    """Each flip with both conversations."""
    before, after = RecordedRollouts(a.folder), RecordedRollouts(b.folder)
    for flip in flips:
        key = (flip.row_index, flip.attempt)
        yield flip, before.read(key).messages, after.read(key).messages


def _values(journal: Journal, name: str, rows: dict[int, str]) -> dict[Key, float | None]:
    """The score of every rollout that was not skipped, None where it failed; the hash of each row goes into `rows`."""
    values: dict[Key, float | None] = {}
    for outcome in journal.outcomes():
        if outcome.status is not RolloutStatus.SKIPPED:
            score = outcome.scores.get(name)
            if "row" in outcome.hashes:
                rows[outcome.row_index] = outcome.hashes["row"]
            values[(outcome.row_index, outcome.attempt)] = score.value if score is not None else None
    return values


def _over_rows(values: dict[Key, float]) -> dict[int, float]:
    """The mean of each row."""
    rows: dict[int, list[float]] = {}
    for key in sorted(values):
        rows.setdefault(key[0], []).append(values[key])
    return {row: sum(found) / len(found) for row, found in rows.items()}


def _mean(rows: dict[int, float]) -> float:
    return sum(rows.values()) / len(rows)


def _worse(difference: float, interval: Interval | None, margin: float) -> bool:
    if interval is None:
        return difference < -margin
    return interval.low < -margin if margin > 0 else interval.high < 0


def _pair(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def _score_names(journal: Journal) -> list[str]:
    names: dict[str, None] = {}
    for outcome in journal.outcomes():
        names.update(dict.fromkeys(outcome.scores))
    return list(names)


def _common_score(a: Journal, b: Journal) -> str:
    first, second = _score_names(a), _score_names(b)
    for name in first:
        if name in second:
            return name
    if len(first) == 1 and len(second) == 1:
        raise ValidationError(f"the runs have different scores: {first[0]!r} and {second[0]!r}", hint="regrade one")
    raise ValidationError(
        f"the runs have no score in common: {', '.join(first) or 'none'} and {', '.join(second) or 'none'}",
        hint="name score functions alike, or regrade one run",
    )
