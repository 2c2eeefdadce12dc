import math
import re
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from statistics import mode

from osmosis.base.stats import pass_at_k, pass_hat_k, quantile, spread
from osmosis.errors import ValidationError
from osmosis.metrics.intervals import bounded_interval, bounds_of
from osmosis.metrics.planning import Pilot, variances
from osmosis.records.run.report import Bounds, PassAtK, Reduced, ScoreReport

Estimate = Callable[[int, int, int], float]


class ScoreValues:
    def __init__(self, name: str, place: tuple[int, int, int]) -> None:
        self.name = name
        self.place = place
        """Order of the scores: by when they were given, else by the first rollout that has one."""
        self.values = array("d")
        self.rows = array("q")
        self.total = 0.0
        self.squares = 0.0
        self.passed = 0
        self.out_of_range = 0

    def add(self, row: int, value: float, passed: bool) -> None:
        self.values.append(value + 0.0)  # no -0.0: which of two zeros is the least would depend on their order
        self.rows.append(row)
        self.total += value
        self.squares += value * value
        if passed:
            self.passed += 1

    def merge(self, other: "ScoreValues") -> None:
        self.place = min(self.place, other.place)
        self.values.extend(other.values)
        self.rows.extend(other.rows)
        self.total += other.total
        self.squares += other.squares
        self.passed += other.passed
        self.out_of_range += other.out_of_range

    def brief(self, counted: int) -> ScoreReport:
        scored = len(self.values)
        mean = self.total / counted if counted else None
        return ScoreReport.model_construct(
            name=self.name,
            mean=mean,
            mean_scored=self.total / scored if scored else None,
            std=None if mean is None else math.sqrt(max(0.0, self.squares / counted - mean * mean)),
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
        reducers: "Sequence[Reducer]" = (),
        *,
        is_group: bool = False,
    ) -> ScoreReport:
        scored, counted = len(self.values), sum(attempts.values())
        missing = counted - scored
        values = spread(sorted([*self.values, *[0.0] * missing]))
        if values is None:
            return ScoreReport(name=self.name, passed=0, scored=0, failed=0)
        by_row = _ByRow(self, attempts, threshold)
        bounds, is_known = bounds_of((values.min, values.max), declared, self.values, len(attempts))
        ones = [1] * len(attempts)
        rate = bounded_interval(by_row.means(by_row.passes), ones)
        yes_or_no = bounds == (0.0, 1.0) and by_row.sums == by_row.passes  # the mean is the pass rate
        means = by_row.means(by_row.sums)
        mean_interval = rate if yes_or_no else bounded_interval(means, ones, bounds) if bounds else None
        return ScoreReport(
            name=self.name,
            mean=by_row.mean(by_row.sums, values.mean),
            mean_interval=mean_interval,
            bounds=bounds if is_known else None,
            assumed_bounds=None if is_known else bounds,
            mean_scored=math.fsum(self.values) / scored if scored else None,
            std=values.std,
            min=values.min,
            max=values.max,
            median=values.median,
            passed=self.passed,
            scored=scored,
            failed=missing,
            pass_rate=by_row.mean(by_row.passes, self.passed / counted),
            pass_rate_interval=rate,
            pass_at_k=by_row.over_k(ks, pass_at_k),
            pass_hat_k=by_row.over_k(ks, pass_hat_k),
            flake_rate=by_row.flake_rate(),
            could_show=None if is_group else by_row.could_show((values.min, values.max), declared),
            out_of_range=self.out_of_range,
            reduced=[
                reduced_score for reducer in reducers if (reduced_score := self._reduced(reducer, by_row, bounds))
            ],
        )

    def only(self, rows: Container[int], threshold: float) -> "ScoreValues":
        selected = ScoreValues(self.name, self.place)
        for value, row in zip(self.values, self.rows, strict=True):
            if row in rows:
                selected.add(row, value, value >= threshold)
        return selected

    def _reduced(self, reducer: "Reducer", by_row: "_ByRow", bounds: Bounds | None) -> Reduced | None:
        rows = zip(by_row.values(self), by_row.passes, strict=True)
        reduced = [value for row in rows if (value := reducer.of(*row)) is not None]
        if not reduced:
            return None
        ones = [1] * len(reduced)
        scale = (0.0, 1.0) if reducer.is_share else bounds
        interval = bounded_interval(reduced, ones, scale) if scale else None
        return Reduced(name=reducer.name, value=math.fsum(reduced) / len(reduced), interval=interval, rows=len(reduced))


class _ByRow:
    def __init__(self, score: ScoreValues, attempts: Mapping[int, int], threshold: float) -> None:
        places = dict.fromkeys(sorted(attempts), 0)
        self.sizes = array("q", map(attempts.__getitem__, places))
        for index, row in enumerate(places):
            places[row] = index
        self.places = places
        self.sums = array("d", bytes(8 * len(places)))
        self.squares = array("d", bytes(8 * len(places)))
        self.passes = array("q", bytes(8 * len(places)))
        several: dict[int, array[float]] = {}
        for value, row in zip(score.values, score.rows, strict=True):
            index = places[row]
            if self.sizes[index] == 1:  # most rows of a large run: no array for each
                self.sums[index], self.squares[index] = value, value * value
            else:
                several.setdefault(index, array("d")).append(value)
            if value >= threshold:
                self.passes[index] += 1
        for index, values in several.items():
            self.sums[index], self.squares[index] = math.fsum(values), math.fsum(value * value for value in values)

    def means(self, totals: Sequence[float]) -> list[float]:
        return [total / size for total, size in zip(totals, self.sizes, strict=True)]

    def mean(self, totals: Sequence[float], of_all: float) -> float:
        return of_all if len(set(self.sizes)) == 1 else math.fsum(self.means(totals)) / len(self.sizes)

    def values(self, score: ScoreValues) -> list[list[float]]:
        by_row: dict[int, list[float]] = {row: [] for row in self.places}
        for value, row in zip(score.values, score.rows, strict=True):
            by_row[row].append(value)
        return [sorted(have + [0.0] * (n - len(have))) for have, n in zip(by_row.values(), self.sizes, strict=True)]

    def over_k(self, ks: Sequence[int], estimate: Estimate) -> list[PassAtK]:
        return [point for k in ks if (point := self._at(k, estimate))]

    def _at(self, k: int, estimate: Estimate) -> PassAtK | None:
        enough = [(n, c) for n, c in zip(self.sizes, self.passes, strict=True) if n >= k]
        if not enough:
            return None
        estimates = {(n, c): estimate(n, c, k) for n, c in set(enough)}
        values = [estimates[pair] for pair in enough]
        interval = bounded_interval(values, [1] * len(values))
        return PassAtK(k=k, value=sum(values) / len(values), interval=interval, rows=len(values))

    def flake_rate(self) -> float | None:
        repeated = [(n, c) for n, c in zip(self.sizes, self.passes, strict=True) if n > 1]
        return sum(1 for n, c in repeated if 0 < c < n) / len(repeated) if repeated else None

    def could_show(self, extremes: Bounds, declared: Bounds | None) -> float | None:
        rows, attempts = len(self.sizes), sum(self.sizes) / len(self.sizes)
        between, within = variances(list(zip(self.sums, self.squares, self.sizes, strict=True)))
        return Pilot(rows, attempts, between, within, 0.0, extremes, declared).detectable(rows, attempts)


NAMES = ("mean", "median", "mode", "max", "at-least-K", "pass@K", "pass^K")

Values = Sequence[float]  # Scores of the attempts at one row, in ascending order

_PLAIN: dict[str, Callable[[Values], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "median": lambda values: quantile(values, 0.5),
    "mode": mode,  # the least of several
    "max": lambda values: values[-1],
}
_COUNTING: dict[str, Callable[[int, int, int], float]] = {
    "at-least-": lambda n, c, k: float(c >= k),
    "pass@": pass_at_k,
    "pass^": pass_hat_k,
}


@dataclass(frozen=True, slots=True)
class Reducer:
    name: str
    kind: str
    k: int = 0

    @property
    def is_share(self) -> bool:
        return self.kind in _COUNTING

    def of(self, values: Values, passed: int) -> float | None:
        if not self.is_share:
            return _PLAIN[self.kind](values)
        return _COUNTING[self.kind](len(values), passed, self.k) if len(values) >= self.k else None


def reducer(name: str, *, attempts: int | None = None) -> Reducer:
    if name in _PLAIN:
        return Reducer(name, name)
    match = re.fullmatch(r"(at-least-|pass@|pass\^)([1-9][0-9]{0,8})", name)
    if match is None:
        raise ValidationError(f"there is no reducer {name!r}", hint=f"one of {', '.join(NAMES)} (K is a number)")
    k = int(match[2])
    if attempts is not None and k > attempts:
        message = f"the reducer {name} needs at least {k} attempts per row, there are {attempts}"
        raise ValidationError(message, hint=f"--n {k}")
    return Reducer(name, match[1], k)
