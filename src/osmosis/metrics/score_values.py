"""The values of one score, and the figures they add up to.

Attempts at one row belong together: intervals, pass@k and flakes are computed row by row. Nothing here depends on the
order in which values arrived.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Container, Mapping, Sequence

from osmosis.base.stats import pass_at_k, pass_hat_k, spread
from osmosis.records.report import Bounds, Interval, PassAtK, Reduced, ScoreReport

from .intervals import bounded_interval, scale_of, unbounded_interval
from .reducers import Reducer

Estimate = Callable[[int, int, int], float]
"""Of attempts, passes and k."""


class ScoreValues:
    """The values of one score, each with its row."""

    def __init__(self, name: str, place: tuple[int, int, int]) -> None:
        self.name = name
        self.place = place
        """Orders the scores: by when they were given, else by the first rollout that has one."""
        self.values = array("d")
        self.rows = array("q")
        self.total = 0.0
        self.squares = 0.0
        self.passed = 0

    def add(self, row: int, value: float, passed: bool) -> None:
        self.values.append(value)
        self.rows.append(row)
        self.total += value
        self.squares += value * value
        if passed:
            self.passed += 1

    def merge(self, other: ScoreValues) -> None:
        self.place = min(self.place, other.place)
        self.values.extend(other.values)
        self.rows.extend(other.rows)
        self.total += other.total
        self.squares += other.squares
        self.passed += other.passed

    def brief(self, counted: int) -> ScoreReport:
        """Without what needs a look at every rollout; `counted` rollouts were not skipped."""
        scored = len(self.values)
        mean = self.total / counted if counted else None
        return ScoreReport.model_construct(
            name=self.name,
            mean=mean,
            mean_scored=self.total / scored if scored else None,
            std=None if mean is None else math.sqrt(max(0.0, self.squares / counted - mean * mean)),
            min=None,
            max=None,
            median=None,
            passed=self.passed,
            scored=scored,
            failed=counted - scored,
            pass_rate=self.passed / counted if counted else None,
        )

    def full(
        self,
        attempts: Mapping[int, int],
        ks: Sequence[int],
        threshold: float,
        declared: Bounds | None = None,
        reducers: Sequence[Reducer] = (),
    ) -> ScoreReport:
        """Everything; `attempts` counts the rollouts of each row that were not skipped."""
        scored, counted = len(self.values), sum(attempts.values())
        missing = counted - scored
        ordered = sorted([*self.values, *[0.0] * missing])
        values = spread(ordered)
        if values is None:
            return ScoreReport.made(name=self.name, passed=0, scored=0, failed=0)
        by_row = _ByRow(self, attempts, threshold)
        seen = (values.min, values.max)
        bounds = scale_of(seen, declared)
        rate = bounded_interval(by_row.passes, by_row.sizes)
        yes_or_no = bounds == (0.0, 1.0) and by_row.sums == by_row.passes  # the mean is the pass rate
        return ScoreReport.made(
            name=self.name,
            mean=values.mean,
            mean_interval=rate if yes_or_no else by_row.mean_interval(seen, bounds),
            bounds=bounds,
            mean_scored=math.fsum(self.values) / scored if scored else None,
            std=values.std,
            min=values.min,
            max=values.max,
            median=values.median,
            passed=self.passed,
            scored=scored,
            failed=missing,
            pass_rate=self.passed / counted,
            pass_rate_interval=rate,
            pass_at_k=by_row.over_k(ks, pass_at_k),
            pass_hat_k=by_row.over_k(ks, pass_hat_k),
            flake_rate=by_row.flake_rate(),
            reduced=[found for one in reducers if (found := self._reduced(one, by_row, seen, bounds))],
        )

    def only(self, rows: Container[int], threshold: float) -> ScoreValues:
        """The values of these rows."""
        found = ScoreValues(self.name, self.place)
        for value, row in zip(self.values, self.rows, strict=True):
            if row in rows:
                found.add(row, value, value >= threshold)
        return found

    def _reduced(self, reducer: Reducer, by_row: _ByRow, seen: Bounds, bounds: Bounds | None) -> Reduced | None:
        found = [
            value
            for values, passed in zip(by_row.values(self), by_row.passes, strict=True)
            if (value := reducer.of(values, passed)) is not None
        ]
        if not found:
            return None
        ones = [1] * len(found)
        scale = (0.0, 1.0) if reducer.is_share else bounds
        interval = bounded_interval(found, ones, scale) if scale else unbounded_interval(found, ones, seen)
        return Reduced(name=reducer.name, value=math.fsum(found) / len(found), interval=interval, rows=len(found))


class _ByRow:
    """One score added up per row, rows in ascending order."""

    def __init__(self, score: ScoreValues, attempts: Mapping[int, int], threshold: float) -> None:
        places = dict.fromkeys(sorted(attempts), 0)
        self.sizes = array("q", map(attempts.__getitem__, places))
        for place, row in enumerate(places):
            places[row] = place
        self.places = places
        self.sums = array("d", bytes(8 * len(places)))
        self.passes = array("q", bytes(8 * len(places)))
        several: dict[int, array[float]] = {}
        for value, row in zip(score.values, score.rows, strict=True):
            place = places[row]
            if self.sizes[place] == 1:  # most rows of a large run: no array for each
                self.sums[place] = value
            else:
                several.setdefault(place, array("d")).append(value)
            if value >= threshold:
                self.passes[place] += 1
        for place, values in several.items():
            self.sums[place] = math.fsum(values)

    def mean_interval(self, seen: Bounds, bounds: Bounds | None) -> Interval | None:
        if bounds is None:
            return unbounded_interval(self.sums, self.sizes, seen)
        return bounded_interval(self.sums, self.sizes, bounds)

    def values(self, score: ScoreValues) -> list[list[float]]:
        """The values of each row in ascending order, one for every attempt: a missing one is 0."""
        found: dict[int, list[float]] = {row: [] for row in self.places}
        for value, row in zip(score.values, score.rows, strict=True):
            found[row].append(value)
        return [sorted(have + [0.0] * (n - len(have))) for have, n in zip(found.values(), self.sizes, strict=True)]

    def over_k(self, ks: Sequence[int], estimate: Estimate) -> list[PassAtK]:
        """One point for each k that some row has enough attempts for."""
        return [point for k in ks if (point := self._at(k, estimate))]

    def _at(self, k: int, estimate: Estimate) -> PassAtK | None:
        enough = [(n, c) for n, c in zip(self.sizes, self.passes, strict=True) if n >= k]
        if not enough:
            return None
        known = {(n, c): estimate(n, c, k) for n, c in set(enough)}
        values = [known[pair] for pair in enough]
        interval = bounded_interval(values, [1] * len(values))
        return PassAtK(k=k, value=sum(values) / len(values), interval=interval, rows=len(values))

    def flake_rate(self) -> float | None:
        repeated = [(n, c) for n, c in zip(self.sizes, self.passes, strict=True) if n > 1]
        return sum(1 for n, c in repeated if 0 < c < n) / len(repeated) if repeated else None
