"""Agreement of a judge with people: kappa against worked examples, its error against the delta method."""

from __future__ import annotations

import math

import pytest

from osmosis.metrics.agreement import agreement, kappa_error


def pairs(a: int, b: int, c: int, d: int) -> list[tuple[bool, bool]]:
    return [(True, True)] * a + [(True, False)] * b + [(False, True)] * c + [(False, False)] * d


def kappa_of(cells: list[float]) -> float:
    a, b, c, d = cells
    chance = (a + b) * (a + c) + (c + d) * (b + d)
    return (a + d - chance) / (1 - chance)


def test_kappa_of_a_worked_example() -> None:
    found = agreement(pairs(20, 5, 10, 15))
    assert found is not None
    assert (found.rate, found.kappa) == (0.7, pytest.approx(0.4))
    assert found.bias == pytest.approx(-0.1)
    assert (found.judge_only, found.person_only) == (5, 10)


@pytest.mark.parametrize("cells", [(20, 5, 10, 15), (45, 15, 25, 15), (90, 2, 5, 3), (1, 30, 2, 60)])
def test_its_error_is_that_of_the_delta_method(cells: tuple[int, int, int, int]) -> None:
    n = sum(cells)
    shares = [cell / n for cell in cells]
    gradient = []
    for i in range(4):
        step = 1e-6
        above, below = list(shares), list(shares)
        above[i] += step
        below[i] -= step
        # Of kappa as a function of shares that need not add up to one.
        gradient.append((scaled(above) - scaled(below)) / (2 * step))
    mean = sum(p * g for p, g in zip(shares, gradient, strict=True))
    variance = sum(p * (g - mean) ** 2 for p, g in zip(shares, gradient, strict=True)) / n
    assert kappa_error(*shares, n) == pytest.approx(math.sqrt(variance), rel=1e-4)


def scaled(cells: list[float]) -> float:
    total = sum(cells)
    return kappa_of([cell / total for cell in cells])


def test_a_judge_that_flips_coins_agrees_by_chance_alone() -> None:
    found = agreement(pairs(25, 25, 25, 25))
    assert found is not None
    assert found.kappa == 0
    assert found.kappa_interval is not None
    assert found.kappa_interval.low == pytest.approx(-found.kappa_interval.high)


def test_where_nothing_can_be_said_nothing_is() -> None:
    assert agreement([]) is None
    always = agreement(pairs(30, 0, 0, 0))
    assert always is not None
    assert (always.rate, always.kappa, always.kappa_interval) == (1.0, None, None)
    few = agreement(pairs(3, 1, 1, 3))
    assert few is not None
    assert few.kappa == pytest.approx(0.5)
    assert few.kappa_interval is None
