"""Find the step at which a rollout was lost, by continuations from its steps: up to the fatal step they succeed with
one chance, later with a lower one. Both chances are integrated out over a grid; the failure itself counts as a
continuation after the last step. Next comes the step that is after the fatal one with a chance nearest to one half."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from osmosis.metrics.formats import percent
from osmosis.records.base import Record
from osmosis.records.run.report import Interval

Count = tuple[int, int]  # How many continuations passed, of how many
CERTAIN = 0.95
_CELLS = 20
_GRID = [(i + 0.5) / _CELLS for i in range(_CELLS)]
_PAIRS = [(high, low) for high in range(_CELLS) for low in range(high)]
_PRIOR = [math.log(_GRID[high] - _GRID[low]) + 2 * math.log(1 - _GRID[low]) for high, low in _PAIRS]


class StepChance(Record):
    success: float
    interval: Interval
    fatal: float  # the chance that it is the fatal step


class FatalStep(Record):
    fatal_step: int  # the likeliest; 0 for none: from the first step on, success is as unlikely
    chance: float
    next_step: int  # the step to continue from
    curve: list[StepChance]  # one for each step, the first at 0

    @property
    def sentence(self) -> str:
        if self.fatal_step == 0:
            return f"no step lost it ({percent(self.chance)}): success is this unlikely from the first step on"
        return f"step {self.fatal_step} {'' if self.chance >= CERTAIN else 'may have '}lost it ({percent(self.chance)})"


def find_fatal_step(steps: int, counts: Mapping[int, Count]) -> FatalStep:
    """Return what is known of a failed rollout of so many steps."""
    measured = sorted(counts)
    pairs = [counts[number] for number in measured]
    splits = [_split(pairs[:i], pairs[i:]) for i in range(len(pairs) + 1)]
    places = [bisect_right(measured, fatal) for fatal in range(steps + 1)]
    total = sum_of_logs([splits[i][0] for i in places])
    chances = [math.exp(splits[i][0] - total) for i in places]
    masses = [before for _, before, _ in splits] + [after for _, _, after in splits]
    curve = []
    for step in range(1, steps + 1):
        weights = [0.0] * len(masses)
        for fatal, i in enumerate(places):
            weights[i if fatal >= step else i + len(splits)] += chances[fatal]
        mass = [sum(w * cells[i] for w, cells in zip(weights, masses, strict=True)) for i in range(_CELLS)]
        below = [*accumulate(mass)]
        low, high = bisect_right(below, 0.025) / _CELLS, min(1.0, (1 + bisect_left(below, 0.975)) / _CELLS)
        interval = Interval(low=low, high=high, level=0.95)
        success = sum(m * p for m, p in zip(mass, _GRID, strict=True))
        curve.append(StepChance(success=success, interval=interval, fatal=chances[step]))
    best, is_after = max(range(steps + 1), key=chances.__getitem__), [*accumulate(chances)]
    next_step = 1 + min(range(steps), key=lambda i: abs(is_after[i] - 0.5))
    return FatalStep(fatal_step=best, chance=chances[best], next_step=next_step, curve=curve)


def sum_of_logs(values: Sequence[float]) -> float:
    top = max(values)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))


def _split(before: Sequence[Count], after: Sequence[Count]) -> tuple[float, list[float], list[float]]:
    """Return the log likelihood of a fatal step between two groups, and the mass of each chance by cell of the grid."""
    sides = []
    for group, lost in ((before, 0), (after, 1)):
        passed, lost = sum(p for p, _ in group), lost + sum(n - p for p, n in group)
        sides.append([passed * math.log(p) + lost * math.log(1 - p) for p in _GRID])
    logs = [prior + sides[0][high] + sides[1][low] for (high, low), prior in zip(_PAIRS, _PRIOR, strict=True)]
    likelihood = sum_of_logs(logs)
    masses = [0.0] * _CELLS, [0.0] * _CELLS
    for pair, log in zip(_PAIRS, logs, strict=True):
        for mass, cell in zip(masses, pair, strict=True):
            mass[cell] += math.exp(log - likelihood)
    return likelihood, *masses
