"""How often the intervals and verdicts of `osmosis.metrics` are right, simulated: the tables of docs/statistics.md.

    python benchmarks/coverage.py                                   # every table: some ten minutes on two cores
    python benchmarks/coverage.py --only bounded --runs 2000        # one of them, quickly
    python benchmarks/coverage.py --seed 1 --seed 2 --seed 3        # again with the seeds of an earlier run

Whether an interval holds the truth is computed for all runs at once, with the formula of `BoundedMean` in numpy; in the
first runs of each cell the product's own code says so, too, and must agree. The seeds are drawn anew each time and
printed. A limit holds for the worst seed's estimate, minus (or plus) two standard errors; the exit code is 1 where one
is missed. Cells that no method can cover are shown without a limit. Decisions (blame, gates, judges) run the product's
own code, fewer times.
"""

from __future__ import annotations

import argparse
import math
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass
from itertools import product
from statistics import NormalDist

import coverage_of_decisions as decisions
import numpy as np
from numpy.typing import NDArray

from osmosis.base.stats import pass_at_k, pass_hat_k
from osmosis.metrics.intervals import (
    beyond,
    bounded_interval,
    bounds_of,
    difference_of,
    levels as look_levels,
    verdict_of,
)
from osmosis.metrics.planning import UNSEEN, predicted
from osmosis.records.run.report import Interval

Floats = NDArray[np.float64]
WIDTHS = 40
"""Runs of each cell in which the interval is made and not only asked whether it holds the truth."""


@dataclass(frozen=True)
class Cell:
    """One line of a table: how its figures came about, and what they must reach."""

    table: str
    name: tuple[str, ...]
    simulate: str
    args: tuple[object, ...]
    least: float | None = None
    """Of the share that is right."""
    most: float | None = None
    """Of the share that is a false alarm."""


@dataclass
class Found:
    share: float
    """Of the runs in which something was said."""
    said: float = 1.0
    width: float = math.nan
    beside: float = math.nan
    """The same by the textbook method, where one is shown."""
    runs: int | None = None
    """Where they are fewer than asked for."""


# -- data ----------------------------------------------------------------------------------------------------------


def levels(rng: np.random.Generator, p: float, rho: float, shape: tuple[int, int]) -> Floats:
    """The pass rate of each row: beta, so that two attempts at a row correlate by `rho`."""
    if rho == 0:
        return np.full(shape, p)
    k = (1 - rho) / rho
    return rng.beta(p * k, (1 - p) * k, shape)


def five(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.where(rng.random(shape) < 0.05, rng.integers(0, 3, shape), 5.0)


def hundred(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.where(rng.random(shape) < 0.02, 0.0, 100.0)


def eighty(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.where(rng.random(shape) < 0.02, 0.0, np.clip(rng.normal(80, 5, shape), 0, 100))


def rubric(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.choice([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], p=[0.02, 0.03, 0.05, 0.1, 0.3, 0.5], size=shape)


def lows(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.beta(0.2, 4, shape)


def flat(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.random(shape)


def bell(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.normal(0, 1, shape)


def waits(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.exponential(1, shape)


def skewed(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.lognormal(0, 1, shape)


def rare(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return np.where(rng.random(shape) < 0.01, 100.0, 1.0 + rng.random(shape))


SCORES: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], Floats], float, tuple[float, float]]] = {
    "0 to 5, 5 % of 0, 1, 2, else 5": (five, 4.8, (0, 5)),
    "0 to 100, 2 % of 0, else 100": (hundred, 98.0, (0, 100)),
    "0 to 100, 2 % of 0, else about 80": (eighty, 0.98 * 79.99993, (0, 100)),
    "rubric of 0 to 5, mostly 4 and 5": (rubric, 4.13, (0, 5)),
    "0 to 1, nearly all near 0": (lows, 0.2 / 4.2, (0, 1)),
    "0 to 1, uniform": (flat, 0.5, (0, 1)),
    "normal": (bell, 0.0, (-math.inf, math.inf)),
    "exponential": (waits, 1.0, (0, math.inf)),
    "lognormal, sigma 1": (skewed, math.exp(0.5), (0, math.inf)),
    "1 % of 100, else 1 to 2": (rare, 0.01 * 100 + 0.99 * 1.5, (1, 100)),
}


# -- the tails of `BoundedMean` for many samples at once -----------------------------------------------------------


def chance_below_zero(shape: Floats, scale: Floats) -> Floats:
    """As `osmosis.base.stats.chance_below_zero`, for each line of both arrays."""
    scale = np.where(shape > 0, scale, 0.0)
    low, high = scale.min(1), scale.max(1)
    certain = (low >= 0) | (high <= 0)
    with np.errstate(all="ignore"):
        left, right = 1 / np.minimum(low, -1e-300), 1 / np.maximum(high, 1e-300)
        s = np.zeros(len(scale))
        for _ in range(60):
            step = scale / (1 - s[:, None] * scale)
            slope, curvature = (shape * step).sum(1), (shape * step * step).sum(1)
            right, left = np.where(slope > 0, s, right), np.where(slope > 0, left, s)
            found = np.clip(s - slope / curvature, s - 0.9 * (s - left), s + 0.9 * (right - s))
            done = np.abs(found - s) <= 1e-10 * np.abs(found)
            s = found
            if (done | certain).all():
                break
        step = scale / (1 - s[:, None] * scale)
        curvature = (shape * step**2).sum(1)
        r = np.sign(s) * np.sqrt(np.maximum(0, 2 * (shape * np.log1p(-s[:, None] * scale)).sum(1)))
        u = s * np.sqrt(curvature)
        near = r + 2 * (shape * step**3).sum(1) / (6 * curvature**1.5)
        z = np.where(np.abs(r) < 1e-3, near, r + np.log(u / r) / r)
        return np.where(low >= 0, 0.0, np.where(high <= 0, 1.0, np.asarray(NORMAL(np.clip(z, -12, 12)))))


NORMAL = np.vectorize(NormalDist().cdf)


def tails(
    counts: Floats, values: Floats, low: Floats, high: Floats, mean: Floats, *, mid: bool = False
) -> list[Floats]:
    """As `BoundedMean.tails(mean)`: of each line, in which a row's `value` is there `counts` times."""
    shape = np.concatenate([counts, np.ones((len(counts), 1))], 1)
    below = [
        chance_below_zero(
            shape, np.concatenate([np.broadcast_to(values, counts.shape), end[:, None]], 1) - mean[:, None]
        )
        for end in (low, high)
    ]
    return [(below[0] + below[1]) / 2, 1 - (below[0] + below[1]) / 2] if mid else [below[0], 1 - below[1]]


def holds(
    counts: Floats, values: Floats, bounds: tuple[Floats | float, Floats | float], mean: Floats | float
) -> NDArray[np.bool_]:
    """Whether the interval of each line holds the mean."""
    found = []
    chunk = max(1, 2_000_000 // counts.shape[1])
    low, high, truth = (np.broadcast_to(np.asarray(one, float), len(counts)) for one in (*bounds, mean))
    for i in range(0, len(counts), chunk):
        part = slice(i, i + chunk)
        lines = values if values.ndim == 1 else values[part]
        above, below = tails(counts[part], lines, low[part], high[part], truth[part])
        inside = (low[part] <= truth[part]) & (truth[part] <= high[part])
        found.append(inside & (np.minimum(above, below) >= 0.025))
    return np.concatenate(found)


def agree(said: bool, found: Interval, truth: float) -> None:
    """The product's interval and `holds` say the same, but for rounding at its ends."""
    inside = found.low <= truth <= found.high
    near = min(abs(truth - found.low), abs(found.high - truth)) < 1e-3 * (found.high - found.low)
    assert said == inside or near, (said, found, truth)


# -- simulations: each is called with a generator, the number of runs and a cell's arguments -----------------------


def bounded(rng: np.random.Generator, runs: int, scores: str, rows: int, attempts: int) -> Found:
    """The mean of a score with declared bounds. Attempts at a row are the row's value half of the time."""
    make, mean, bounds = SCORES[scores]
    means = make(rng, (runs, rows))
    if attempts > 1:
        shared = rng.binomial(attempts, 0.5, (runs, rows))
        means *= shared
        for i in range(attempts):
            means += np.where(i < attempts - shared, make(rng, (runs, rows)), 0.0)
        means /= attempts
    said = holds(np.ones(means.shape), means, bounds, mean)
    widths = []
    for values, hit in zip(means[:WIDTHS].tolist(), said, strict=False):
        found = bounded_interval([attempts * value for value in values], [attempts] * rows, bounds)
        assert found is not None
        agree(hit, found, mean)
        widths.append((found.high - found.low) / (bounds[1] - bounds[0]))
    return Found(float(said.mean()), 1.0, float(np.mean(widths)))


def unknown(rng: np.random.Generator, runs: int, scores: str, rows: int) -> Found:
    """The mean of a score whose bounds nobody declared."""
    make, mean, _ = SCORES[scores]
    drawn = make(rng, (runs, rows))
    least, most = drawn.min(1), drawn.max(1)
    given = drawn[least < most]
    low, high = (np.asarray([beyond(pair)[i] for pair in zip(least, most, strict=True)])[least < most] for i in (0, 1))
    said = holds(np.ones(given.shape), given, (low, high), mean)
    for values in drawn[:WIDTHS].tolist():
        bounds, _ = bounds_of((min(values), max(values)), None, values, rows)
        assert (bounds is None) == (min(values) == max(values))
    for values, hit in zip(given[:WIDTHS].tolist(), said, strict=False):
        bounds, _ = bounds_of((min(values), max(values)), None, values, rows)
        assert bounds is not None
        found = bounded_interval(values, [1] * rows, bounds)
        assert found is not None
        agree(hit, found, mean)
    return Found(float(said.mean()), len(given) / runs)


ESTIMATES = {"pass@": pass_at_k, "pass^": pass_hat_k}


def at_k(rng: np.random.Generator, runs: int, kind: str, k: int, p: float, rho: float, rows: int, n: int) -> Found:
    """pass@k or pass^k; the truth is the mean over the beta distribution of rows."""
    per_count = np.asarray([ESTIMATES[kind](n, c, k) for c in range(n + 1)])
    truth = _true_at_k(kind, k, p, rho)
    passed = rng.binomial(n, levels(rng, p, rho, (runs, rows)))
    counts = np.stack([(passed == c).sum(1) for c in range(n + 1)], 1).astype(float)
    said = holds(counts, per_count, (0.0, 1.0), truth)
    widths = []
    for row, hit in zip(passed[:WIDTHS], said, strict=False):
        found = bounded_interval(per_count[row].tolist(), [1] * rows)
        assert found is not None
        agree(hit, found, truth)
        widths.append(found.high - found.low)
    return Found(float(said.mean()), 1.0, float(np.mean(widths)))


def _true_at_k(kind: str, k: int, p: float, rho: float) -> float:
    if rho == 0:
        return 1 - (1 - p) ** k if kind == "pass@" else p**k
    alpha, beta = p * (1 - rho) / rho, (1 - p) * (1 - rho) / rho
    one = beta if kind == "pass@" else alpha
    none = math.prod((one + i) / (alpha + beta + i) for i in range(k))
    return 1 - none if kind == "pass@" else none


def _pairs(rng: np.random.Generator, kind: str, p: float, shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """The pass rates of each row in runs A and B."""
    if kind == "same model":
        same = levels(rng, p, 0.3, shape)
        return same, same
    if kind == "other rows are hard":
        return levels(rng, p, 0.5, shape), levels(rng, p, 0.5, shape)
    if kind == "steady against all or nothing":
        return np.full(shape, p), (rng.random(shape) < p).astype(float)
    if kind == "B better by 0.1 at each row":
        rows = levels(rng, p, 0.3, shape)
        return rows, np.minimum(1.0, rows + 0.1)
    gain = 0.3 if "0.3" in kind else 0.1
    return levels(rng, p, 0.5, shape), levels(rng, p + gain, 0.5, shape)  # B better, other rows are hard


def verdict(rng: np.random.Generator, runs: int, kind: str, p: float, rows: int, n: int, failing: float) -> Found:
    """How often two runs get a verdict: a false alarm where they are equally good, else the power. Beside it: the
    paired t test over rows."""
    told = told_by_t = said = 0
    chunk = max(1, 1_000_000 // (rows * n))
    for start in range(0, runs, chunk):
        size = min(chunk, runs - start)
        passed = [rng.random((size, rows, n)) < side[:, :, None] for side in _pairs(rng, kind, p, (size, rows))]
        ok = [rng.random((size, rows, n)) >= failing for _ in "ab"]
        both, some = ok[0] & ok[1], ok[0] | ok[1]
        change = (passed[1] & ok[1]).astype(float) - (passed[0] & ok[0])
        by_row = [_row_means(change, mask) for mask in (both, some)]
        looks = np.where(both.all((1, 2)) | (both == some).all((1, 2)), 1, 2)
        scored, zeros = (_tails(*one) for one in by_row)
        worse = 2 * looks * np.where(looks == 1, scored[1], np.minimum(scored[1], zeros[1]))
        better = 2 * looks * np.where(looks == 1, scored[0], np.maximum(scored[0], zeros[0]))
        enough = 0.5 ** by_row[0][1].sum(1) < 0.05 / looks
        verdicts = enough & (np.minimum(worse, better) < 0.05)
        for i in range(min(size, WIDTHS) if start == 0 else 0):
            lists = [values[i][there[i]].tolist() for values, there in by_row[: looks[i]]]
            found, _ = verdict_of([difference_of(one, (0.0, 1.0), None, int(looks[i])) for one in lists])
            assert (found in ("better", "worse")) == verdicts[i], (found, lists)
            assert (found != "too few rows to tell") == enough[i]
        said, told = said + int(enough.sum()), told + int(verdicts.sum())
        told_by_t += int(_t_test(*by_row[0]).sum())
    return Found(told / runs, said / runs, beside=told_by_t / runs)


SCHEDULES = {
    "20 to 100 rows": [(rows, 1) for rows in (20, 40, 60, 80, 100)],
    "20 to 400 rows": [(rows, 1) for rows in (20, 115, 210, 305, 400)],
    "50 rows x 1 to 9": [(50, n) for n in (1, 3, 5, 7, 9)],
    "20 x 1 to 50 x 4": [(20, 1), (50, 1), (50, 2), (50, 3), (50, 4)],
}
"""When a comparison that goes on looks: rows and attempts of each run by then."""


def sequential(rng: np.random.Generator, runs: int, kind: str, p: float, schedule: str) -> Found:
    """How often a comparison that goes on ends with a verdict, and after which share of its rollouts. Beside it: one
    test at 5 % when all of them are there."""
    looks = SCHEDULES[schedule]
    rows, n = looks[-1]
    shares = [some * attempts / (rows * n) for some, attempts in looks]
    told = told_at_the_end = 0
    used = 0.0
    chunk = max(1, 1_000_000 // (rows * n))
    for start in range(0, runs, chunk):
        size = min(chunk, runs - start)
        passed = [rng.random((size, rows, n)) < side[:, :, None] for side in _pairs(rng, kind, p, (size, rows))]
        change = passed[1].astype(float) - passed[0]
        open_ = np.ones(size, bool)
        spent = np.ones(size)
        for (some, attempts), share, level in zip(looks, shares, look_levels(shares), strict=True):
            values = change[:, :some, :attempts].mean(2)
            p_value = 2 * np.minimum(*_tails(values, np.ones(values.shape, bool)))
            clear = (p_value < level) & (0.5**some < level)
            for i in range(min(size, WIDTHS) if start == 0 else 0):
                difference = difference_of(values[i].tolist(), (0.0, 1.0), None, 1, 1 - level)
                assert (verdict_of([difference], 1 - level)[0] in ("better", "worse")) == clear[i]
            spent[open_ & clear] = share
            open_ &= ~clear
        told, used = told + int((~open_).sum()), used + float(spent.sum())
        told_at_the_end += int((p_value < 0.05).sum())
    return Found(told / runs, width=used / runs, beside=told_at_the_end / runs)


def _row_means(change: Floats, mask: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """The mean change of each row, and which rows have one."""
    counts = mask.sum(2)
    return np.where(mask, change, 0.0).sum(2) / np.maximum(1, counts), counts > 0


def _tails(values: Floats, there: NDArray[np.bool_]) -> list[Floats]:
    one = np.ones(len(values))
    return tails(there.astype(float), values, -one, one, 0 * one, mid=True)


def _t_test(values: Floats, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    counts = np.maximum(2, there.sum(1))
    means = values.sum(1) / counts
    spread = np.sqrt(np.where(there, (values - means[:, None]) ** 2, 0.0).sum(1) / (counts - 1))
    limits = np.asarray([T_975.get(int(count) - 1, 2.0) for count in counts])
    return np.abs(means) > limits * spread / np.sqrt(counts)


T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 8: 2.306, 9: 2.262, 19: 2.093, 49: 2.010, 199: 1.972}


COSTS: dict[str, Callable[[np.random.Generator, Floats, tuple[int, int, int]], Floats]] = {
    "lognormal, sigma 0.3": lambda g, row, s: np.exp(0.3 * (0.7 * row + 0.7 * g.normal(size=s))),
    "lognormal, sigma 0.6": lambda g, row, s: np.exp(0.6 * (0.7 * row + 0.7 * g.normal(size=s))),
    "lognormal, sigma 1": lambda g, row, s: np.exp(0.7 * row + 0.7 * g.normal(size=s)),
    "exponential": lambda g, row, s: g.exponential(1, s),
    "one in five rows costs 5 times": lambda g, row, s: (
        np.where(row > 0.8416, 5.0, 1.0) * np.exp(0.2 * g.normal(size=s))
    ),
    "one in three fails at once": lambda g, row, s: np.where(g.random(s) < 0.3, 0.05, 1.0) * np.exp(0.3 * row),
    "one in ten costs 10 times": lambda g, row, s: np.where(g.random(s) < 0.1, 10.0, 1.0) * np.exp(0.2 * row),
}


def pilot(rng: np.random.Generator, runs: int, costs: str, size: int, rows: int, n: int) -> Found:
    """Whether the prediction interval of a pilot holds the total that comes out."""
    row = np.repeat(rng.normal(size=(runs, rows, 1)), n, 2)
    spent = COSTS[costs](rng, row, (runs, rows, n))
    seen, left = spent[:, :size, 0], rows * n - size
    total = spent.sum((1, 2)) - seen.sum(1)
    mean, variance = seen.mean(1), seen.var(1, ddof=1)
    off = np.sign(total / left - mean) * np.sqrt(
        np.maximum(0, (total / left - mean) ** 2 - 1.959964**2 * variance * n / left)
    )
    high = UNSEEN * seen.max(1)
    said = (off == 0) | holds(np.ones(seen.shape), seen, (0.0, high), mean + off)
    said |= total / left > high  # decided below, by the product
    widths = []
    for i in np.unique([*range(min(runs, WIDTHS)), *np.flatnonzero(total / left > high)]):
        _, found = predicted(seen[i].tolist(), left, n)
        assert found is not None
        if total[i] / left > high[i]:
            said[i] = found.low <= total[i] <= found.high
        agree(bool(said[i]), found, float(total[i]))
        widths.append((found.high - found.low) / total[i])
    half = T_975.get(size - 1, 1.96) * np.sqrt(variance / size)
    return Found(float(said.mean()), 1.0, float(np.median(widths)), float((np.abs(total / left - mean) <= half).mean()))


# -- cells ---------------------------------------------------------------------------------------------------------


def cells() -> Iterator[Cell]:
    yield from _means()
    yield from _at_k()
    yield from _verdicts()
    for costs, size, (rows, n) in product(COSTS, (5, 10, 20, 50), ((200, 1), (100, 5))):
        least = None if costs == "one in ten costs 10 times" else 0.93
        yield Cell("pilot", (costs, str(size), f"{rows} x {n}"), "pilot", (costs, size, rows, n), least)
    for decision in decisions.lines():
        yield Cell(*astuple(decision))


def _means() -> Iterator[Cell]:
    declared = [scores for scores, (_, _, bounds) in SCORES.items() if math.isfinite(bounds[1] - bounds[0])]
    for scores, rows, n in product(declared, (5, 20, 100, 500), (1, 5)):
        where = (scores, f"{rows} x {n}")
        yield Cell("bounded", where, "bounded", (scores, rows, n), 0.92 if rows >= 20 else None)
    for scores, rows in product(SCORES, (20, 100, 500)):
        least = None if scores == "1 % of 100, else 1 to 2" else 0.92
        yield Cell("unknown", (scores, str(rows)), "unknown", (scores, rows), least)


def _at_k() -> Iterator[Cell]:
    shapes = ((5, 3), (20, 1), (20, 8), (100, 8), (500, 3), (500, 8))
    figures = (("pass@", 1), ("pass@", 3), ("pass@", 5), ("pass^", 3))
    for p, rho, (rows, n), (kind, k) in product((0.02, 0.3, 0.5, 0.9, 0.97), (0.0, 0.3, 0.8), shapes, figures):
        if k <= n:
            where = (f"{kind}{k}", f"{p:g}", f"{rho:g}", f"{rows} x {n}")
            yield Cell("pass-at-k", where, "at_k", (kind, k, p, rho, rows, n), 0.93)


def _verdicts() -> Iterator[Cell]:
    equal = ("same model", "other rows are hard", "steady against all or nothing")
    runs = ((1, 0.0), (5, 0.0), (5, 0.1))
    for kind, p, rows, (n, failing) in product(equal, (0.02, 0.5, 0.9), (2, 5, 10, 20, 50, 200), runs):
        where = (kind, f"{p:g}", f"{rows} x {n}", f"{failing * 100:g} %")
        yield Cell("verdict", where, "verdict", (kind, p, rows, n, failing), most=0.06)
    better = ("B better by 0.1 at each row", "B better by 0.1, other rows are hard")
    for kind, rows, n in product(better, (20, 50, 200), (1, 5)):
        yield Cell("power", (kind, "0.5", f"{rows} x {n}", "0 %"), "verdict", (kind, 0.5, rows, n, 0.0))
    for kind, p, schedule in product(equal, (0.02, 0.5, 0.9), SCHEDULES):
        yield Cell("sequential", (kind, f"{p:g}", schedule), "sequential", (kind, p, schedule), most=0.06)
    for kind, schedule in product((*better, "B better by 0.3, other rows are hard"), SCHEDULES):
        yield Cell("saved", (kind, "0.5", schedule), "sequential", (kind, 0.5, schedule))


SIMULATIONS: dict[str, Callable[..., Found]] = {
    "bounded": bounded, "unknown": unknown, "at_k": at_k, "verdict": verdict, "pilot": pilot,
    "sequential": sequential,
}  # fmt: skip
HEADS = {
    "bounded": ("score", "rows x attempts", "coverage", "mean width"),
    "unknown": ("score, bounds not declared", "rows", "coverage", "withheld"),
    "pass-at-k": ("figure", "p", "rho", "rows x attempts", "coverage", "mean width"),
    "verdict": ("equally good", "p", "rows x attempts", "failing", "false alarms", "too few rows", "paired t"),
    "power": ("not equally good", "p", "rows x attempts", "failing", "told", "too few rows", "paired t"),
    "sequential": ("equally good", "p", "looks", "false verdicts", "rollouts used", "one test at the end"),
    "saved": ("not equally good", "p", "looks", "told", "rollouts used", "one test at the end"),
    "pilot": ("cost of a rollout", "pilot", "rows x attempts", "coverage", "width / total", "t of the mean"),
    **decisions.HEADS,
}


def simulate(job: tuple[Cell, int, Sequence[int]]) -> tuple[list[Found], bool]:
    """Return the cell's result under each seed, and whether it is within its limit."""
    cell, runs, seeds = job
    place = [ord(letter) for part in cell.name for letter in part]
    generators = [np.random.default_rng([seed, *place]) for seed in seeds]
    if cell.table in decisions.HEADS:
        outcomes = [decisions.SIMULATIONS[cell.simulate](rng, runs, *cell.args) for rng in generators]
        results = [Found(outcome.share, outcome.answered, outcome.width, runs=outcome.runs) for outcome in outcomes]
    else:
        results = [SIMULATIONS[cell.simulate](rng, runs, *cell.args) for rng in generators]

    def error(result: Found) -> float:
        counted = runs * result.said if result.runs is None else result.runs
        return 2 * math.sqrt(max(result.share * (1 - result.share), 1 / counted) / max(1.0, counted))

    least = min([result.share - error(result) for result in results if result.said], default=1.0)
    most = max(result.share + error(result) for result in results)
    if cell.table in decisions.HEADS:  # fewer runs: a limit is missed where the estimate is clearly beyond it
        least = min([result.share + error(result) for result in results], default=1.0)
        most = max(result.share - error(result) for result in results)
    return results, (cell.least is None or least >= cell.least) and (cell.most is None or most <= cell.most)


def line(cell: Cell, found: Sequence[Found], *, good: bool) -> str:
    """The worst seed's share, and the rest of the first."""
    share = max(one.share for one in found) if cell.most is not None else min(one.share for one in found)
    first = found[0]
    percent = cell.most is not None or cell.table in ("power", "saved")
    shown = [f"{share * 100:.1f} %" if percent else f"{share:.3f}"]
    if cell.table in decisions.HEADS:
        percent = HEADS[cell.table][len(cell.name)] not in ("coverage",)
        more = [f"{first.said * 100:.0f} %", f"{first.width:.2f}"][: len(HEADS[cell.table]) - len(cell.name) - 1]
        if cell.table in ("graded", "detectable"):
            more = [f"{first.width:.3f}"]
        shown = [f"{share * 100:.1f} %" if percent else f"{share:.3f}", *more]
    elif cell.table == "unknown":
        shown.append(f"{(1 - first.said) * 100:.0f} %")
    elif cell.simulate == "sequential":
        shown += [f"{first.width * 100:.0f} %", f"{first.beside * 100:.1f} %"]
    elif percent:
        shown += [f"{(1 - first.said) * 100:.0f} %", f"{first.beside * 100:.1f} %"]
    else:
        shown.append(f"{first.width:.3f}")
    if cell.table == "pilot":
        shown.append(f"{first.beside:.2f}")
    mark = "" if good else " **missed**"
    return "| " + " | ".join([*cell.name, *shown]) + f"{mark} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs of each cell and seed")
    parser.add_argument("--seed", type=int, action="append", help="repeatable; three new ones when not given")
    parser.add_argument("--only", choices=list(HEADS), action="append", help="only this table; repeatable")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    seeds = given.seed or [secrets.randbelow(10**9) for _ in range(3)]
    print(f"{given.runs:,} runs of each cell with each seed; seeds {', '.join(map(str, seeds))}", flush=True)
    chosen = [cell for cell in cells() if not given.only or cell.table in given.only]
    missed, table = 0, ""
    with ProcessPoolExecutor(given.processes) as pool:
        results = pool.map(simulate, [(cell, given.runs, seeds) for cell in chosen])
        for cell, (found, good) in zip(chosen, results, strict=True):
            if cell.table != table:
                table = cell.table
                print(f"\n| {' | '.join(HEADS[table])} |\n|{' --- |' * len(HEADS[table])}", flush=True)
            print(line(cell, found, good=good), flush=True)
            missed += not good
    print(f"\n{missed} of {len(chosen)} cells missed their limit")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
