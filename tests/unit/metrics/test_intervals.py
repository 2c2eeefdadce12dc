"""Intervals cover what they say, and stay where the values can be. `benchmarks/coverage.py` is the long form."""

import random

import pytest

from osmosis.metrics import intervals

RUNS = 400
LEAST = 0.925
"""Of 400 runs at a coverage of 0.95, minus two standard errors, minus a little: nothing here is ever unlucky."""


def covered(make, truth, runs=RUNS, seed=3):
    """The share of simulated intervals that hold the truth, of those that were given."""
    source = random.Random(seed)
    found = [one for one in (make(source) for _ in range(runs)) if one is not None]
    assert found
    return sum(one.low <= truth <= one.high for one in found) / len(found)


def attempts_at(source, rows, rate, attempts, rho=0.5):
    """Passes of each row; attempts at one row share its difficulty."""
    k = (1 - rho) / rho
    levels = (source.betavariate(rate * k, (1 - rate) * k) for _ in range(rows))
    return [sum(source.random() < level for _ in range(attempts)) for level in levels]


@pytest.mark.parametrize(("rate", "rows"), [(0.9, 8), (0.97, 20), (0.5, 40), (0.02, 60)])
def test_the_interval_of_a_rate_covers_it_though_attempts_share_a_row(rate, rows):
    share = covered(lambda s: intervals.bounded_interval(attempts_at(s, rows, rate, 5), [5] * rows), rate)
    assert share > LEAST


@pytest.mark.parametrize(("low", "share", "rows"), [(1.0, 0.05, 20), (0.0, 0.02, 20), (0.0, 0.02, 100)])
def test_a_scale_where_nearly_all_are_at_the_top_is_covered_once_it_is_declared(low, share, rows):
    def make(source):
        values = [low if source.random() < share else 5.0 for _ in range(rows)]
        return intervals.bounded_interval(values, [1] * rows, (0.0, 5.0))

    assert covered(make, share * low + (1 - share) * 5.0) > LEAST


def test_without_bounds_an_interval_is_given_only_where_the_sample_supports_one():
    def make(source, rows=20):
        values = [source.choice([0.0, 1.0]) if source.random() < 0.05 else 5.0 for _ in range(rows)]
        bounds, _ = intervals.bounds_of((min(values), max(values)), None, values, rows)
        return intervals.bounded_interval(values, [1] * rows, bounds) if bounds else None

    assert covered(make, 0.05 * 0.5 + 0.95 * 5.0) > LEAST
    given = [make(random.Random(seed)) for seed in range(100)]
    assert 20 < given.count(None) < 50  # nothing but 5.0 was seen: 36 %
    assert intervals.bounds_of((1.0, 2.0), None, [1.0, 2.0] * 5, 10) == (None, False)


@pytest.mark.parametrize(
    ("scored", "extremes", "bounds"),
    [
        ([0.0, 1.0], (0.0, 1.0), ((0.0, 1.0), True)),
        ([0.0] * 5, (0.0, 0.0), ((0.0, 1.0), True)),
        ([1.0] * 5, (1.0, 1.0), ((-1.0, 1.0), False)),  # perhaps a reward of -1 and 1
        ([1.0] * 5, (0.0, 1.0), ((-1.0, 1.0), False)),  # the 0 is a failure
        ([0.2] * 30 + [0.4], (0.2, 0.4), ((0.0, 0.6), False)),
        ([0.2, 0.4], (0.2, 0.4), (None, False)),
    ],
)
def test_bounds_are_known_or_said_to_be_assumed(scored, extremes, bounds):
    found, is_known = intervals.bounds_of(extremes, None, scored, len(scored))
    assert (found and pytest.approx(found), is_known) == bounds


def test_a_reward_of_minus_one_and_one_is_covered():
    def make(source, rows=20):
        values = [1.0 if source.random() < 0.9 else -1.0 for _ in range(rows)]
        bounds, _ = intervals.bounds_of((min(values), max(values)), None, values, rows)
        return intervals.bounded_interval(values, [1] * rows, bounds)

    assert covered(make, 0.8) > LEAST


def test_an_interval_stays_inside_and_does_not_collapse():
    found = intervals.bounded_interval([5] * 10, [5] * 10)
    assert found.high == 1.0
    assert found.low == pytest.approx(0.025**0.1, abs=2e-3)  # Clopper and Pearson, of ten rows
    nothing = intervals.bounded_interval([0] * 10, [5] * 10)
    assert (nothing.low, nothing.high) == (0.0, pytest.approx(1 - found.low))
    wide = intervals.bounded_interval([5] * 5 + [0] * 5, [5] * 10)
    tight = intervals.bounded_interval([1] * 25 + [0] * 25, [1] * 50)
    assert wide.high - wide.low > tight.high - tight.low
    assert intervals.bounded_interval([3], [5]) is None  # one row says nothing about others


def test_an_interval_moves_with_its_scale():
    grades = [0.2, 0.9, 1.0, 0.7, 0.95, 0.4]
    unit = intervals.bounded_interval(grades, [1] * 6)
    scaled = intervals.bounded_interval([10 * g - 2 for g in grades], [1] * 6, (-2.0, 8.0))
    assert (scaled.low, scaled.high) == (pytest.approx(10 * unit.low - 2), pytest.approx(10 * unit.high - 2))


def test_many_different_values_are_merged_without_moving_anything():
    source = random.Random(5)
    values = [source.random() ** 3 for _ in range(390)]
    exact = intervals.bounded_interval(values, [1] * 390)
    doubled = intervals.bounded_interval(values + [v + 1e-12 for v in values[:20]], [1] * 410)
    assert doubled.low == pytest.approx(exact.low, abs=5e-3)
    large = [source.random() for _ in range(20_000)]
    found = intervals.bounded_interval(large, [1] * 20_000)
    mean = sum(large) / 20_000
    assert found.high - mean == pytest.approx(1.96 * (1 / 12 / 20_000) ** 0.5, rel=0.03)


def test_the_bounds_of_a_score():
    assert intervals.scale_of((0.2, 0.9), None) == (0.0, 1.0)
    assert intervals.scale_of((0.2, 1.5), None) is None
    assert intervals.scale_of((1.0, 4.0), (1.0, 5.0)) == (1.0, 5.0)
    assert intervals.scale_of((0.0, 4.0), (1.0, 5.0)) == (0.0, 5.0)  # a failure counts as 0
    assert intervals.scale_of((-1.0, 4.0), (0.0, 5.0)) is None  # what is declared is not so


def test_a_distribution_of_one_value_is_that_value():
    assert intervals.distribution([3.0]).p99 == 3.0
    assert intervals.distribution([]) is None
