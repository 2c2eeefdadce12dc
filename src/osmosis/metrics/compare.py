"""Two runs side by side, paired by row and attempt: the difference with a bootstrap interval over rows, McNemar's
test for pass rates, and every flip. Pairs that one side has no score for are counted apart; a second difference has
failures as zeros, so that a run that crashes where it is hard does not look better than one that tries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis.base.stats import mcnemar
from osmosis.errors import ValidationError
from osmosis.records.report import Interval
from osmosis.records.rollout import RolloutStatus

from .counted import Counted
from .intervals import bootstrap_interval

Key = tuple[int, int]


@dataclass(slots=True)
class Flip:
    """One pair that passed on one side only."""

    row_index: int
    attempt: int
    before: float
    after: float

    @property
    def key(self) -> Key:
        return (self.row_index, self.attempt)

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


def compare(a: Iterable[Counted], b: Iterable[Counted], *, threshold: float, score: str | None = None) -> Comparison:
    """The rollouts of run `b` against those of run `a`; each is read once.

    `score` defaults to the first that both have. Raises ValidationError when nothing can be paired.
    """
    before, after = _Side(a), _Side(b)
    name = score or _common_score(list(before.names), list(after.names))
    values_a, values_b = before.values(name), after.values(name)
    shared = sorted(key for key, value in values_a.items() if value is not None and values_b.get(key) is not None)
    differ = {row for row, found in before.rows.items() if after.rows.get(row, found) != found}
    _check_pairs(shared, differ, name, before)
    both = [key for key in values_a if key in values_b and (values_a[key], values_b[key]) != (None, None)]
    scored, zeros = _Paired(shared, values_a, values_b), _Paired(sorted(both), values_a, values_b)
    flips = [
        Flip(*key, *pair) for key, pair in scored.pairs.items() if (pair[0] >= threshold) != (pair[1] >= threshold)
    ]
    gained = sum(1 for flip in flips if flip.gained)
    pairs = list(scored.pairs.values())
    return Comparison(
        score=name,
        pairs=len(pairs),
        rows=len(scored.rows),
        only_a=_scored(values_a) - len(pairs),
        only_b=_scored(values_b) - len(pairs),
        mean_a=scored.mean_a,
        mean_b=scored.mean_b,
        difference=scored.mean_b - scored.mean_a,
        interval=scored.interval(),
        pass_rate_a=sum(1 for value, _ in pairs if value >= threshold) / len(pairs),
        pass_rate_b=sum(1 for _, value in pairs if value >= threshold) / len(pairs),
        gained=gained,
        lost=len(flips) - gained,
        p_value=mcnemar(gained, len(flips) - gained),
        failed_a=sum(1 for key in both if values_a[key] is None),
        failed_b=sum(1 for key in both if values_b[key] is None),
        difference_failures_0=zeros.mean_b - zeros.mean_a,
        interval_failures_0=zeros.interval(),
        rows_differ=len(differ & scored.rows.keys()),
        flips=flips,
    )


class _Side:
    """One run's rollouts that were not skipped: their scores, None where one failed, and the hash of each row."""

    def __init__(self, rollouts: Iterable[Counted]) -> None:
        self.names: dict[str, None] = {}
        self.rows: dict[int, str] = {}
        self._scores: dict[Key, dict[str, float | None]] = {}
        for rollout in rollouts:
            self.names.update(dict.fromkeys(rollout.scores))
            if rollout.status is RolloutStatus.SKIPPED:
                continue
            if "row" in rollout.hashes:
                self.rows[rollout.row_index] = rollout.hashes["row"]
            key = (rollout.row_index, rollout.attempt)
            self._scores[key] = {name: score.value for name, score in rollout.scores.items()}

    def values(self, name: str) -> dict[Key, float | None]:
        return {key: scores.get(name) for key, scores in self._scores.items()}


class _Paired:
    """Both values of each pair, a missing one as 0, and the mean of each row on both sides."""

    def __init__(self, keys: Sequence[Key], a: Mapping[Key, float | None], b: Mapping[Key, float | None]) -> None:
        self.pairs = {key: (a[key] or 0.0, b[key] or 0.0) for key in keys}
        by_row: dict[int, list[tuple[float, float]]] = {}
        for (row, _), pair in self.pairs.items():
            by_row.setdefault(row, []).append(pair)
        self.rows = {row: (_mean([x for x, _ in found]), _mean([y for _, y in found])) for row, found in by_row.items()}
        self.mean_a = _mean([x for x, _ in self.rows.values()])
        self.mean_b = _mean([y for _, y in self.rows.values()])

    def interval(self) -> Interval | None:
        return bootstrap_interval([y - x for x, y in self.rows.values()])


def _check_pairs(shared: list[Key], differ: set[int], name: str, a: _Side) -> None:
    if not shared:
        raise ValidationError(
            f"the two runs have no pair with the score {name!r}",
            hint=f"compare runs over the same rows and attempts; scores: {', '.join(a.names) or 'none'}",
        )
    if all(row in differ for row, _ in shared):
        raise ValidationError(
            "the two runs share no row: the datasets have other rows at the same places",
            hint="compare runs over the same dataset",
        )


def _scored(values: Mapping[Key, float | None]) -> int:
    return sum(1 for value in values.values() if value is not None)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _worse(difference: float, interval: Interval | None, margin: float) -> bool:
    if interval is None:
        return difference < -margin
    return interval.low < -margin if margin > 0 else interval.high < 0


def _pair(interval: Interval | None) -> list[float] | None:
    return [interval.low, interval.high] if interval else None


def _common_score(first: list[str], second: list[str]) -> str:
    for name in first:
        if name in second:
            return name
    if len(first) == 1 and len(second) == 1:
        raise ValidationError(f"the runs have different scores: {first[0]!r} and {second[0]!r}", hint="regrade one")
    raise ValidationError(
        f"the runs have no score in common: {', '.join(first) or 'none'} and {', '.join(second) or 'none'}",
        hint="name score functions alike, or regrade one run",
    )
