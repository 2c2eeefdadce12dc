"""The decisions that `coverage.py` simulates through the product's own code, with fewer runs: blame, gates, judges.

Each function is called with a generator, the number of runs and a cell's arguments, and returns the share of the runs
that are right (a coverage) or wrong (false alarms), the share in which there was an answer, and a mean width.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapreplace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from osmosis.local.bisect import chances, next_version
from osmosis.local.branch import CERTAIN
from osmosis.metrics.agreement import agreement
from osmosis.metrics.compare import compare
from osmosis.metrics.intervals import bounded_interval, bounds_of, difference_of, levels, missed_bar, verdict_of
from osmosis.metrics.planning import predicted_time
from osmosis.metrics.reward_audit import Scored, changed, judge, probes_of, suspects
from osmosis.metrics.training import NO_SIGNAL, signal_of
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.records.run.rows import Row

Floats = NDArray[np.float64]
Generator = np.random.Generator


class Outcome(NamedTuple):
    share: float
    runs: int
    answered: float = 1.0
    width: float = float("nan")


@dataclass(frozen=True)
class Line:
    table: str
    name: tuple[str, ...]
    simulate: str
    args: tuple[object, ...]
    least: float | None = None
    most: float | None = None


# -- blame ---------------------------------------------------------------------------------------------------------

COMMITS, BUDGET = 16, 40


def _rates(rng: Generator, kind: str, rows: int) -> tuple[Floats, Floats]:
    flaky = np.full(rows, 0.7)
    return {
        "nothing changed, p 0.7": (flaky, flaky),
        "nothing changed, p 0.5": (flaky - 0.2, flaky - 0.2),
        "every row breaks": (np.ones(rows), np.zeros(rows)),
        "half of the rows break": (flaky, np.where(np.arange(rows) < rows // 2, 0.0, flaky)),
        "every row 20 points down": (flaky, flaky - 0.2),
    }[kind]


def bisect(rng: Generator, runs: int, kind: str, rows: int, attempts: int) -> Outcome:
    """How often an innocent commit is named, of the times that one is; `answered` is how often one is named."""
    runs = max(100, runs // 20)
    answered = wrong = rollouts = 0
    for _ in range(runs):
        before, after = _rates(rng, kind, rows)
        first_bad = int(rng.integers(1, COMMITS + 1))
        name, spent = _search(rng, before, after, attempts, first_bad)
        rollouts += spent
        answered += name is not None
        wrong += name is not None and (name != first_bad or kind.startswith("nothing"))
    if kind.startswith("nothing"):
        return Outcome(wrong / runs, runs, answered / runs, rollouts / runs)
    return Outcome(wrong / max(1, answered), max(1, answered), answered / runs, rollouts / runs)


def _search(rng: Generator, before: Floats, after: Floats, step: int, first_bad: int) -> tuple[int | None, int]:
    """As `osmosis.local.branch`, with the rates in place of runs."""
    rows, most = len(before), BUDGET * step // 4
    values: dict[int, Floats] = {}

    def measure(place: int, attempts: int) -> None:
        rates = before if place < first_bad else after
        have = values.get(place, np.zeros((rows, 0)))
        more = (rng.random((rows, attempts - have.shape[1])) < rates[:, None]).astype(float)
        values[place] = np.concatenate([have, more], 1)

    looks = [step * 2**i for i in range(most.bit_length()) if step * 2**i < most] + [most]
    for attempts, level in zip(looks, levels([look / most for look in looks]), strict=True):
        for place in (0, COMMITS):
            measure(place, attempts)
        changes = (values[COMMITS] - values[0]).ravel().tolist()
        ends, _ = verdict_of([difference_of(changes, (0.0, 1.0), (0.0, 1.0), 1, 1 - level)], 1 - level)
        if ends in ("better", "worse"):
            break
    versions = [str(place) for place in range(COMMITS + 1)]
    while True:
        spent = sum(array.size for array in values.values())
        if ends != "worse":
            return None, spent
        counts = {
            str(place): {row: (float(line.sum()), line.size) for row, line in enumerate(array)}
            for place, array in values.items()
        }
        chance = chances(versions, counts)
        if max(chance) >= CERTAIN:
            return int(np.argmax(chance)), spent
        place = next_version(versions, chance, ())
        if place is None or spent + rows * step > BUDGET * rows * step:
            return None, spent
        have = values[place].shape[1] if place in values else 0
        measure(place, have + step)


# -- figures -------------------------------------------------------------------------------------------------------

JUDGES = {
    "passes 0.9, sees 0.97 and 0.6": (0.9, 0.97, 0.6),
    "passes 0.5, sees 0.9 and 0.9": (0.5, 0.9, 0.9),
    "passes 0.1, sees 0.6 and 0.97": (0.1, 0.6, 0.97),
}


def kappa(rng: Generator, runs: int, kind: str, figure: str, rows: int, labels: int) -> Outcome:
    """Simulate how often the interval holds; labels of a row are the same verdicts in seven of ten cases."""
    runs = max(100, runs // 25)
    prevalence, right, wrong = JUDGES[kind]
    cells = np.array([
        prevalence * right, (1 - prevalence) * (1 - wrong), prevalence * (1 - right), (1 - prevalence) * wrong
    ])  # fmt: skip
    passes = cells[0] + cells[1]
    chance = passes * prevalence + (1 - passes) * (1 - prevalence)
    same = cells[0] + cells[3]
    truth = {"kappa": (same - chance) / (1 - chance), "agreement": same, "bias": passes - prevalence}[figure]
    hits = answered = 0
    widths = []
    for _ in range(runs):
        of_row = rng.choice(4, p=cells, size=(rows, 1))
        drawn = np.where(rng.random((rows, labels)) < 0.7, of_row, rng.choice(4, p=cells, size=(rows, labels)))
        result = agreement((row, cell in (0, 1), cell in (0, 2)) for row, line in enumerate(drawn) for cell in line)
        assert result is not None
        by_figure = {"kappa": result.kappa_interval, "agreement": result.rate_interval, "bias": result.bias_interval}
        interval = by_figure[figure]
        if interval is not None:
            answered += 1
            hits += interval.low - 1e-9 <= truth <= interval.high + 1e-9
            widths.append(interval.high - interval.low)
    return Outcome(hits / max(1, answered), max(1, answered), answered / runs, float(np.mean(widths)))


def minus_one(rng: Generator, runs: int, p: float, rows: int) -> Outcome:
    """The mean of a reward of -1 and 1 that nobody declared."""
    runs = max(100, runs // 10)
    hits = answered = 0
    widths = []
    for _ in range(runs):
        values = np.where(rng.random(rows) < p, 1.0, -1.0).tolist()
        bounds, _ = bounds_of((min(values), max(values)), None, values, rows)
        interval = bounded_interval(values, [1] * rows, bounds) if bounds else None
        if interval is not None:
            answered += 1
            hits += interval.low <= 2 * p - 1 <= interval.high
            widths.append(interval.high - interval.low)
    return Outcome(
        hits / max(1, answered), max(1, answered), answered / runs, float(np.mean(widths)) if widths else 0.0
    )


def signal(rng: Generator, runs: int, p: float, rows: int, attempts: int, size: int) -> Outcome:
    """Simulate how often the interval of the share of groups with signal holds, and how often a training is refused."""
    runs = max(100, runs // 25)
    truth = 1 - p**size - (1 - p) ** size
    hits = refused = 0
    widths = []
    for _ in range(runs):
        _, interval = signal_of((rng.random((rows, attempts)) < p).astype(float).tolist(), size)
        assert interval is not None
        hits += interval.low <= truth <= interval.high
        refused += interval.high < NO_SIGNAL
        widths.append(interval.high - interval.low)
    return Outcome(hits / runs, runs, refused / runs, float(np.mean(widths)))


def bar(rng: Generator, runs: int, p: float, above: float, rows: int) -> Outcome:
    """How often --fail-under fails a run whose true pass rate is this far above the bar."""
    runs = max(200, runs // 5)
    missed = 0
    for passed in rng.binomial(rows, p, runs):
        rates = [1.0] * int(passed) + [0.0] * (rows - int(passed))
        missed += missed_bar("pass rate", p - above, passed / rows, bounded_interval(rates, [1] * rows)) is not None
    return Outcome(missed / runs, runs)


def time(rng: Generator, runs: int, pilot: int, lanes: int) -> Outcome:
    """Simulate how often the interval of a run's time holds at its end; lognormal durations, sigma 1."""
    runs = max(100, runs // 20)
    hits = 0
    widths = []
    for _ in range(runs):
        durations = np.exp(rng.normal(size=pilot + 200)).tolist()
        free = [0.0] * lanes
        for duration in durations[pilot:]:
            heapreplace(free, free[0] + duration)
        _, interval = predicted_time(durations[:pilot], 200, lanes, 1)
        assert interval is not None
        hits += interval.low <= max(free) <= interval.high
        widths.append((interval.high - interval.low) / max(free))
    return Outcome(hits / runs, runs, 1.0, float(np.mean(widths)))


# -- comparisons ---------------------------------------------------------------------------------------------------


def _run(values: Floats) -> list[Rollout]:
    return [
        Rollout(
            rollout_id=f"{row}-{attempt}", row_index=row, attempt=attempt, status=RolloutStatus.SUCCESS,
            scores={"f": Score(name="f", value=float(value))},
        )
        for row, line in enumerate(values) for attempt, value in enumerate(line)
    ]  # fmt: skip


def unequal(rng: Generator, runs: int, gain: float, rows: int, a: int, b: int) -> Outcome:
    """How often a comparison of runs with other numbers of attempts has a verdict; rows differ (rho 0.3)."""
    runs = max(100, runs // 25)
    answered = 0
    for _ in range(runs):
        rates = rng.beta(0.5 * 7 / 3, 0.5 * 7 / 3, (rows, 1))
        before = (rng.random((rows, a)) < rates).astype(float)
        after = (rng.random((rows, b)) < np.minimum(1.0, rates + gain)).astype(float)
        answered += compare(_run(before), _run(after), threshold=1.0).verdict in ("better", "worse")
    return Outcome(answered / runs, runs)


def graded(rng: Generator, runs: int, gain: float, largest: float | None, rows: int) -> Outcome:
    """How often scores of 0 to 1 that all move by `gain`, with noise of 0.05, have a verdict; width: what the rows
    could have shown.
    """
    runs = max(100, runs // 25)
    answered = 0
    sizes = []
    for _ in range(runs):
        level = rng.uniform(0.2, 0.6, (rows, 1))
        before, after = (np.clip(level + more + rng.normal(0, 0.05, (rows, 1)), 0, 1) for more in (0.0, gain))
        result = compare(_run(before), _run(after), threshold=1.0, bounds={"f": (0.0, 1.0)}, largest_change=largest)
        answered += result.verdict in ("better", "worse")
        sizes.append(result.detectable or 1.0)
    return Outcome(answered / runs, runs, 1.0, float(np.mean(sizes)))


def detectable(rng: Generator, runs: int, rows: int, attempts: int) -> Outcome:
    """How often a difference of the size that rows could have shown is shown; pass rate 0.5 in A."""
    runs = max(100, runs // 25)

    def draw(rate: float) -> list[Rollout]:
        return _run((rng.random((rows, attempts)) < rate).astype(float))

    sizes = [compare(draw(0.5), draw(0.5), threshold=1.0).detectable or 0.0 for _ in range(30)]
    size = float(np.mean(sizes))
    answered = sum(compare(draw(0.5), draw(0.5 + size), threshold=1.0).verdict == "better" for _ in range(runs))
    return Outcome(answered / runs, runs, 1.0, size)


# -- the reward battery --------------------------------------------------------------------------------------------

NOISE = {
    "noise of 0.15": lambda source, right: right + source.gauss(0, 0.15),
    "0.2 to 0.8, noise of 0.2": lambda source, right: 0.2 + 0.6 * right + source.gauss(0, 0.2),
    "passes one wrong answer in ten": lambda source, right: 1.0 if right else float(source.random() < 0.1),
}


def battery(rng: Generator, runs: int, kind: str, leak: bool, rows: int) -> Outcome:
    """How often a noisy judge is called free; with a leak, it pays 0.9 for praise."""
    runs = max(60, runs // 100)
    source = random.Random(int(rng.integers(2**31)))
    data = [Row(index=i, data={"user_prompt": f"{i}?", "ground_truth": str(100 + 7 * i)}) for i in range(rows)]
    probes = probes_of(data)
    called = 0
    for _ in range(runs):

        def score(name: str, probe_kind: str) -> Scored:
            paid = 0.9 if leak and name == "praise for a judge" else 0.0
            return Scored(min(1.0, max(0.0, NOISE[kind](source, 1.0 if probe_kind == "truth" else paid))))

        every = [(probe, i) for probe in probes for i, answer in enumerate(probe.answers) if answer is not None]
        first = {(probe.name, i): score(probe.name, probe.kind) for probe, i in every}
        again: dict[tuple[str, int], list[Scored]] = {}
        for repeat in range(max(1, -(-24 // rows))):
            if repeat and not changed(first, again):
                break
            names = suspects(probes, first)
            for probe, i in every:
                if probe.name in names:
                    again.setdefault((probe.name, i), []).append(score(probe.name, probe.kind))
        called += judge("reward", data, probes, first, again).free
    return Outcome(called / runs, runs)


SIMULATIONS = {
    "bisect": bisect, "kappa": kappa, "minus_one": minus_one, "signal": signal, "bar": bar, "time": time,
    "unequal": unequal, "graded": graded, "detectable": detectable, "battery": battery,
}  # fmt: skip
HEADS = {
    "blame": ("change", "rows x attempts", "innocent named", "named", "rollouts"),
    "agreement": ("judge", "figure", "rows x labels", "coverage", "given", "mean width"),
    "minus-one": ("passes", "rows", "coverage", "given", "mean width"),
    "signal": ("rate", "rows x attempts", "group", "coverage", "refused", "mean width"),
    "bar": ("true rate", "above the bar by", "rows", "failed"),
    "time": ("pilot", "at once", "coverage", "given", "width / time"),
    "unequal": ("gain", "rows", "attempts of A and B", "verdicts"),
    "graded": ("gain of every row", "largest change", "rows", "verdicts", "could have shown"),
    "detectable": ("rows x attempts", "shown", "difference"),
    "battery": ("judge", "leak", "rows", "called free"),
}


def lines() -> Iterator[Line]:
    for kind, (rows, n) in product(
        ("nothing changed, p 0.7", "nothing changed, p 0.5", "every row breaks", "half of the rows break",
         "every row 20 points down"), ((20, 1), (20, 5))
    ):  # fmt: skip
        yield Line("blame", (kind, f"{rows} x {n}"), "bisect", (kind, rows, n), most=0.05)
    for kind, figure, (rows, n) in product(
        JUDGES, ("kappa", "agreement", "bias"), ((10, 1), (20, 1), (50, 1), (100, 1), (20, 5))
    ):
        yield Line("agreement", (kind, figure, f"{rows} x {n}"), "kappa", (kind, figure, rows, n), least=0.92)
    for p, rows in product((0.5, 0.9, 0.97), (20, 100)):
        yield Line("minus-one", (f"{p:g}", str(rows)), "minus_one", (p, rows), least=0.92)
    for p, (rows, n) in product((0.05, 0.1, 0.3, 0.9), ((8, 1), (20, 1), (4, 2), (8, 4), (50, 8))):
        yield Line("signal", (f"{p:g}", f"{rows} x {n}", "16"), "signal", (p, rows, n, 16), least=0.93)
    for p, above, rows in product((0.5, 0.9), (0.0, 0.05), (20, 40, 200)):
        yield Line("bar", (f"{p:g}", f"{above:g}", str(rows)), "bar", (p, above, rows), most=0.03)
    for pilot, lanes in product((5, 20, 50), (8, 32, 64)):
        # Five durations say too little of the longest of two hundred when 64 run at once.
        least = None if (pilot, lanes) == (5, 64) else 0.85
        yield Line("time", (str(pilot), str(lanes)), "time", (pilot, lanes), least=least)
    for gain, rows in product((0.0, 0.1), (50, 200)):
        for a, b in ((1, 1), (1, 8), (8, 1)):
            most = 0.06 if gain == 0 else None
            yield Line("unequal", (f"{gain:g}", str(rows), f"{a} and {b}"), "unequal", (gain, rows, a, b), most=most)
    for gain, largest, rows in product((0.0, 0.05), (None, 0.5), (20, 50, 100)):
        name = (f"{gain:g}", "not declared" if largest is None else f"{largest:g}", str(rows))
        yield Line("graded", name, "graded", (gain, largest, rows), most=0.06 if gain == 0 else None)
    for rows, n in ((20, 1), (60, 1), (60, 5), (200, 1)):
        yield Line("detectable", (f"{rows} x {n}",), "detectable", (rows, n), least=0.7)
    for kind, leak, rows in product(NOISE, (False, True), (5, 20)):
        limits = {"least": 0.95} if leak else {"most": 0.05}
        yield Line("battery", (kind, "yes" if leak else "no", str(rows)), "battery", (kind, leak, rows), **limits)
