"""How many rows and attempts show a difference. That of one row's means has the variance `effect + 2 * within /
attempts`; what a sample of that variance shows is asked of the very test that will judge it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from osmosis.metrics.significance import difference_of
from osmosis.records.run.report import Bounds
from osmosis.records.run.rollout import Rollout, RolloutStatus

Rows = Sequence[Sequence[float]]
MOST_ROWS = 1_000_000
MOST_ATTEMPTS = 1_000
_STEPS = 14
"""Halvings of the scale: more digits than are shown."""
_SAMPLED = 2_000
"""More rows are computed as so many, less by the root of their number."""


@dataclass(frozen=True, slots=True)
class Pilot:
    """Variances of a score, estimated from one or two runs."""

    rows: int
    attempts: float
    """Mean number at a row."""
    between: float
    """Variance of the rows' true means; 0 with single attempts, which cannot tell it from that within rows."""
    within: float
    """Variance of the attempts at one row, all that there is with single attempts."""
    effect: float
    """Variance of the rows' true differences between two runs; 0 with one."""
    extremes: Bounds
    declared: Bounds | None = None

    @property
    def scale(self) -> float:
        low, high = self.declared or self.extremes
        return high - low

    def detectable(self, rows: int, attempts: float) -> float | None:
        """Return the smallest true difference that so many rows show in 80 % of runs; None: not even the largest."""
        if self.scale <= 0:
            return None
        low, high = 0.0, self.scale
        if not self._is_shown(high, rows, attempts):
            return None
        for _ in range(_STEPS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._is_shown(middle, rows, attempts) else (middle, high)
        return high

    def rows_needed(self, difference: float, attempts: float) -> int | None:
        return _least(lambda rows: self._is_shown(difference, rows, attempts), MOST_ROWS)

    def attempts_needed(self, difference: float, rows: int) -> int | None:
        return _least(lambda attempts: self._is_shown(difference, rows, attempts), MOST_ATTEMPTS)

    def _is_shown(self, difference: float, rows: int, attempts: float) -> bool:
        # Rows that all get better, or stay, vary most where a few of them move from one end to the other.
        changed = difference / self.scale
        effect = max(self.effect / self.scale / self.scale, changed * (1 - changed))
        share = effect + 2 * self.within / attempts / self.scale / self.scale
        sampled = min(rows, _SAMPLED)
        if not share * sampled <= sampled - 1:  # or not finite
            return False
        ends = max(1, math.ceil(sampled * share / 2 - 1e-9))
        step = self.scale * math.sqrt(sampled * share / (2 * ends))
        changes = [step] * ends + [-step] * ends + [0.0] * (sampled - 2 * ends)
        smallest = difference_of(changes, self.extremes, self.declared).detectable
        return smallest is not None and smallest * math.sqrt(sampled / rows) <= difference


def scores_by_row(rollouts: Iterable[Rollout], score: str) -> dict[int, list[float]]:
    """Return each row's scores, a failure as 0."""
    rows: dict[int, list[float]] = {}
    for rollout in rollouts:
        if rollout.status is not RolloutStatus.SKIPPED:
            value = rollout.scores[score].value if score in rollout.scores else None
            rows.setdefault(rollout.row_index, []).append(value or 0.0)
    return rows


def pilot_of(runs: Sequence[Rows], changes: Sequence[float] = (), declared: Bounds | None = None) -> Pilot:
    """Estimate from the scores of each row's attempts; `changes`: of the rows' means, first run to second."""
    values = [value for rows in runs for row in rows for value in row]
    pairs = [variances([(math.fsum(row), math.fsum(v * v for v in row), len(row)) for row in rows]) for rows in runs]
    between, within = (math.fsum(pair) / len(pairs) for pair in zip(*pairs, strict=True))
    attempts = len(values) / max(1, sum(map(len, runs)))
    effect = max(0.0, _variance(changes) - 2 * within / attempts)
    extremes = (min(values, default=0.0), max(values, default=0.0))
    return Pilot(len(runs[0]), attempts, between, within, effect, extremes, declared)


def variances(rows: Sequence[tuple[float, float, int]]) -> tuple[float, float]:
    """Return the variance between rows and that within them, given each row's sum, sum of squares and number."""
    total = _variance([value / size for value, _, size in rows])
    several = [max(0.0, squares - value * value / size) / (size - 1) for value, squares, size in rows if size > 1]
    if not several:
        return 0.0, total
    within = math.fsum(several) / len(several)
    share = math.fsum([1 / size for _, _, size in rows]) / len(rows)
    return max(0.0, total - within * share), within


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / max(1, len(values))
    return math.fsum([(value - mean) ** 2 for value in values]) / max(1, len(values) - 1)


def _least(is_enough: Callable[[int], bool], most: int) -> int | None:
    high = 1
    while not is_enough(high):
        if high == most:
            return None
        high = min(most, 2 * high)
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
