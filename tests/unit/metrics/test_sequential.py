"""The levels of repeated looks, against tables that others computed and against simulation."""

from __future__ import annotations

import random
from statistics import NormalDist

import pytest

from osmosis.metrics.intervals import levels, spent

NORMAL = NormalDist()


@pytest.mark.parametrize(
    ("shares", "bounds"),
    [
        # Jennison and Turnbull (2000), and every program for group sequential designs since Lan and DeMets.
        ([0.2, 0.4, 0.6, 0.8, 1.0], [4.877, 3.357, 2.680, 2.290, 2.031]),
        ([0.25, 0.5, 0.75, 1.0], [4.333, 2.963, 2.359, 2.014]),
        ([0.5, 1.0], [2.963, 1.969]),
        ([1.0], [1.960]),
    ],
)
def test_the_bounds_are_those_of_the_tables(shares: list[float], bounds: list[float]) -> None:
    assert [NORMAL.inv_cdf(1 - level / 2) for level in levels(shares)] == pytest.approx(bounds, abs=1e-3)


def test_all_is_spent_at_the_end_and_next_to_nothing_at_the_beginning() -> None:
    assert spent(0) == 0
    assert spent(0.1) < 1e-9
    assert spent(1) == pytest.approx(0.05)
    assert spent(0.6, 0.1) > spent(0.5, 0.1) > spent(0.5)


def test_looks_that_are_not_evenly_spaced_end_a_walk_of_chance_as_often_as_they_say() -> None:
    shares = [0.05, 0.3, 0.35, 0.9, 1.0]
    wanted = levels(shares, 0.2)
    rng = random.Random(7)
    ended = 0
    for _ in range(20_000):
        at = before = 0.0
        for share, level in zip(shares, wanted, strict=True):
            at, before = at + rng.gauss(0, (share - before) ** 0.5), share
            if 2 * (1 - NORMAL.cdf(abs(at) / share**0.5)) < level:
                ended += 1
                break
    assert ended / 20_000 == pytest.approx(0.2, abs=0.012)


@pytest.mark.parametrize("shares", [[], [0.0, 1.0], [0.5, 0.5], [0.8, 0.4], [0.5, 1.1]])
def test_shares_that_do_not_increase_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="increase"):
        levels(shares)
