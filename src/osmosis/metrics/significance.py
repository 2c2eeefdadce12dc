"""Whether a difference between two runs can be told from chance: one test gives interval, p-value and verdict.

The mean of the rows' differences is tested with `BoundedMean` in its mid-p form: for one attempt that passes or not it
is McNemar's mid-p test, and several attempts at a row count as the one row they are. Refuses a verdict where even the
clearest result would not be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from osmosis.base.bounded_mean import BoundedMean, Tails
from osmosis.base.light_dataclass import dataclass
from osmosis.records.report import Bounds, Interval

from .intervals import ROWS_WITHOUT_BOUNDS, beyond, scale_of

Verdict = Literal["better", "worse", "no clear difference", "too few rows to tell"]
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of some rows, as a test sees it."""

    tested: BoundedMean | None
    """None: all scores are equal, on a scale that is not known."""
    level: float
    """Higher where several differences are looked at (Bonferroni)."""
    enough: bool
    """Whether so many rows can show a difference at all."""

    @property
    def tails(self) -> Tails:
        """Against no difference."""
        return self.tested.tails(0.0) if self.tested else Tails(1.0, 1.0)

    @property
    def interval(self) -> Interval | None:
        if self.tested is None or not self.enough:
            return None
        low, high = self.tested.interval(self.level)
        return Interval(low=low, high=high, level=self.level)


def difference_of(
    rows: Sequence[float], seen: Bounds, declared: Bounds | None, looks: int = 1, level: float = LEVEL
) -> Difference:
    """Of the difference of each row; `seen` are the least and the greatest score of either run, a failure as 0.

    `looks`: at how many differences the verdict looks, which is right at this `level`.
    """
    scale = scale_of(seen, declared)
    level = 1 - (1 - level) / looks
    enough = 0.5 ** len(rows) < 1 - level if scale else len(rows) >= ROWS_WITHOUT_BOUNDS
    low, high = scale or beyond(seen)
    tested = BoundedMean(((row, 1) for row in rows), low - high, high - low, mid=True) if low < high else None
    return Difference(tested, level, enough)


def verdict_of(differences: Sequence[Difference], level: float = LEVEL) -> tuple[Verdict, float | None]:
    """The verdict, and its two-sided p-value: `worse` when one difference is clearly negative, `better` when all are
    clearly positive. Too few rows have no p-value."""
    if not all(one.enough for one in differences):
        return "too few rows to tell", None
    looks = len(differences)
    worse = min(1.0, 2 * looks * min(one.tails.below for one in differences))
    better = min(1.0, 2 * looks * max(one.tails.above for one in differences))
    p_value = min(worse, better)
    if p_value >= 1 - level:
        return "no clear difference", p_value
    return ("worse" if worse < better else "better"), p_value


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of several verdicts looked at together (Holm 1979): one that is None was not tested."""
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    least = 0.0
    for place, (p, i) in enumerate(tested):
        least = found[i] = max(least, min(1.0, p * (len(tested) - place)))
    return found
