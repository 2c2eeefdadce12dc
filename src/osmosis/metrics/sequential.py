"""How often one may look at a comparison that goes on, and how clear it has to be each time to stop.

A test at 5 % that is repeated as results come in finds a difference that is not there far more often than 5 % of the
time (Armitage, McPherson and Rowe, "Repeated significance tests on accumulating data", Journal of the Royal Statistical
Society A 132, 1969). Here the 5 % are spent over the looks, by the function of Lan and DeMets ("Discrete sequential
boundaries for clinical trials", Biometrika 70, 1983) that follows O'Brien and Fleming (Biometrics 35, 1979): little
early, nearly all of it at the end. A look is at a share of the rollouts that were planned, which no result may change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

ALPHA = 0.05
_NORMAL = NormalDist()
_STEPS = 200
"""Intervals of Simpson's rule over the region in which the test goes on."""


def spent(share: float, alpha: float = ALPHA) -> float:
    """How much of `alpha`, half of it on each side, may be used up when this share of the rollouts is there."""
    if share <= 0:
        return 0.0
    return 4 * (1 - _NORMAL.cdf(_NORMAL.inv_cdf(1 - alpha / 4) / math.sqrt(min(1.0, share))))


def levels(shares: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The two-sided p-value below which each look ends the test, given at which shares of the rollouts it looks.

    Shares increase and are at most 1. The sum of the standardised differences is a Brownian motion under no difference
    (Jennison and Turnbull, "Group Sequential Methods", 2000, chapter 19); the chance to reach a look and end there is
    integrated from look to look. ValueError for shares that do not increase.
    """
    if list(shares) != sorted(set(shares)) or not shares or not 0 < shares[0] <= shares[-1] <= 1:
        raise ValueError(f"shares must increase and be within 0 and 1, got {list(shares)}")
    found: list[float] = []
    going_on: list[tuple[float, float]] = [(0.0, 1.0)]
    """Where the sum may be without having ended the test, with the weight of each place."""
    before = used = 0.0
    for share in shares:
        wanted = spent(share, alpha) - used
        step = math.sqrt(share - before)
        bound = _bound(going_on, step, wanted)
        found.append(2 * (1 - _NORMAL.cdf(bound / math.sqrt(share))))
        going_on = _inside(going_on, step, bound)
        before, used = share, used + wanted
    return found


def _bound(places: Sequence[tuple[float, float]], step: float, wanted: float) -> float:
    """How far out the sum has to be for it to be there with the wanted chance, on either side."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        if _beyond(places, step, middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beyond(places: Sequence[tuple[float, float]], step: float, bound: float) -> float:
    root = step * math.sqrt(2)
    each = (
        weight * (math.erfc((bound - place) / root) + math.erfc((bound + place) / root)) for place, weight in places
    )
    return sum(each) / 2


def _inside(places: Sequence[tuple[float, float]], step: float, bound: float) -> list[tuple[float, float]]:
    """The density of the sum between the bounds, times the weights of Simpson's rule."""
    width = 2 * bound / _STEPS
    scale = 1 / (step * math.sqrt(2 * math.pi))
    found = []
    for i in range(_STEPS + 1):
        at = -bound + i * width
        density = scale * sum(weight * math.exp(-(((at - place) / step) ** 2) / 2) for place, weight in places)
        simpson = 1 if i in (0, _STEPS) else 4 if i % 2 else 2
        found.append((at, density * simpson * width / 3))
    return found
