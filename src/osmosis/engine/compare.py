"""Two runs side by side, paired by row and attempt: the difference with a bootstrap interval over rows, McNemar's
test for pass rates, and every flip. Pairs that one side has no score for are counted apart, never as zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from osmosis.errors import ValidationError
from osmosis.records.report import Interval
from osmosis.records.rollout import Message

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
    mean_b: float
    difference: float
    """B minus A, mean over rows."""
    interval: Interval | None
    pass_rate_a: float
    pass_rate_b: float
    gained: int
    lost: int
    p_value: float
    """McNemar, exact, two-sided."""
    flips: list[Flip] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`better`, `worse` or `no clear difference`, by the interval of the difference."""
        if self.interval is None or self.interval.low <= 0 <= self.interval.high:
            return "no clear difference"
        return "better" if self.difference > 0 else "worse"

    def regressed(self, margin: float = 0.0) -> bool:
        """Whether B can be worse than A by more than `margin`: the interval's lower end is below it.

        With a margin of 0, only a difference that is clearly negative counts.
        """
        if self.interval is None:
            return self.difference < -margin
        return self.interval.low < -margin if margin > 0 else self.interval.high < 0

    def to_dict(self) -> dict[str, Any]:
        ci = [self.interval.low, self.interval.high] if self.interval else None
        return {
            "score": self.score,
            "pairs": self.pairs,
            "rows": self.rows,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "mean_a": self.mean_a,
            "mean_b": self.mean_b,
            "difference": self.difference,
            "difference_ci": ci,
            "pass_rate_a": self.pass_rate_a,
            "pass_rate_b": self.pass_rate_b,
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
    before, after = dict(_values(a, name)), dict(_values(b, name))
    shared = sorted(key for key in before if key in after)
    if not shared:
        raise ValidationError(
            f"the two runs have no pair with the score {name!r}", hint="compare runs over the same rows and attempts"
        )
    by_row: dict[int, list[float]] = {}
    flips: list[Flip] = []
    for key in shared:
        by_row.setdefault(key[0], []).append(after[key] - before[key])
        if (before[key] >= threshold) != (after[key] >= threshold):
            flips.append(Flip(key[0], key[1], before[key], after[key]))
    differences = [sum(values) / len(values) for values in by_row.values()]
    gained = sum(1 for flip in flips if flip.gained)
    n = len(shared)
    return Comparison(
        score=name,
        pairs=n,
        rows=len(by_row),
        only_a=len(before) - n,
        only_b=len(after) - n,
        mean_a=sum(before[k] for k in shared) / n,
        mean_b=sum(after[k] for k in shared) / n,
        difference=sum(differences) / len(differences),
        interval=bootstrap_interval(differences),
        pass_rate_a=sum(1 for k in shared if before[k] >= threshold) / n,
        pass_rate_b=sum(1 for k in shared if after[k] >= threshold) / n,
        gained=gained,
        lost=len(flips) - gained,
        p_value=mcnemar(gained, len(flips) - gained),
        flips=flips,
    )


def transcripts(a: Journal, b: Journal, flips: list[Flip]) -> Iterator[tuple[Flip, list[Message], list[Message]]]:
    """Each flip with both conversations."""
    before, after = RecordedRollouts(a.folder), RecordedRollouts(b.folder)
    for flip in flips:
        key = (flip.row_index, flip.attempt)
        yield flip, before.read(key).messages, after.read(key).messages


def _values(journal: Journal, name: str) -> Iterator[tuple[Key, float]]:
    for line in journal.lines():
        value = ((line.get("scores") or {}).get(name) or {}).get("value")
        if value is not None:
            yield (line["row_index"], line["attempt"]), value


def _score_names(journal: Journal) -> list[str]:
    names: dict[str, None] = {}
    for line in journal.lines():
        names.update(dict.fromkeys(line.get("scores") or {}))
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
