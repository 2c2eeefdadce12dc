"""Find the version that changed the scores of some rows: the chance of each, and where to measure next. Every version
before the change has the pass rates of the first, every later one those of the last, and neither is known: they are
integrated out, with Jeffreys' prior, once row by row and once for all rows together, half each. A value between 0 and 1
counts as so much of a pass: a pass rate says no less about it than about pass or fail. A version is measured where the
chance that it is changed is nearest to one half (M. Horstein, "Sequential transmission using noiseless feedback", IEEE
Transactions on Information Theory 9, 1963; R. Waeber, P. Frazier and S. Henderson, "Bisection search with noisy
responses", SIAM Journal on Control and Optimization 51, 2013)."""

import math
from collections.abc import Collection, Mapping, Sequence

Row = int
Counts = Mapping[Row, tuple[float, int]]
"""Sum and number of the values, each between 0 and 1, of a version's rollouts at each row."""
CERTAIN = 0.95
_JEFFREYS = 0.5


def chances(versions: Sequence[str], counts: Mapping[str, Counts]) -> list[float]:
    """Return for each version the chance that it is the first one changed; the first never is, and the last is changed.
    Equal names are equal code, and are either changed or not wherever they are."""
    likelihoods = [-math.inf] * len(versions)
    for first in range(1, len(versions)):
        before, after = set(versions[:first]), set(versions[first:])
        if not before & after:
            both = (before, after)
            halves = [sum(_likelihood(group, counts, rowwise) for group in both) for rowwise in (True, False)]
            likelihoods[first] = sum_of_logs(halves)
    total = sum_of_logs(likelihoods)
    return [math.exp(likelihood - total) if likelihood > -math.inf else 0.0 for likelihood in likelihoods]


def next_version(versions: Sequence[str], chance: Sequence[float], excluded: Collection[str]) -> int | None:
    changed = [math.fsum(chance[: position + 1]) for position in range(len(versions))]
    positions = [position for position in range(1, len(versions) - 1) if versions[position] not in excluded]
    best = min(positions, key=lambda position: abs(changed[position] - 0.5), default=None)
    return best if best is not None and 1e-9 < changed[best] < 1 - 1e-9 else None


def sum_of_logs(values: Sequence[float]) -> float:
    top = max(values)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))


def _likelihood(group: Collection[str], counts: Mapping[str, Counts], rowwise: bool) -> float:
    sums: dict[Row, tuple[float, int]] = {}
    for version in group:
        for row, (total, size) in counts.get(version, {}).items():
            key = row if rowwise else 0
            before = sums.get(key, (0.0, 0))
            sums[key] = (before[0] + total, before[1] + size)
    return math.fsum(
        math.lgamma(total + _JEFFREYS)
        + math.lgamma(size - total + _JEFFREYS)
        - math.lgamma(size + 1)
        - math.log(math.pi)
        for total, size in sums.values()
    )
