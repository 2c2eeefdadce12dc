"""Intervals cover what they say, and stay where the values can be."""

import random

import pytest

from osmosis.metrics import intervals


def test_the_clustered_interval_covers_the_truth_about_as_often_as_it_says():
    source = random.Random(1)
    hits = 0
    for _ in range(300):
        sums, sizes = [], []
        for _ in range(40):
            level = source.random()  # attempts at one row share their difficulty
            sums.append(sum(source.random() < level for _ in range(5)))
            sizes.append(5)
        found = intervals.mean_interval(sums, sizes)
        hits += found.low <= 0.5 <= found.high
    assert 0.91 < hits / 300 < 0.985


def test_a_rate_interval_stays_inside_and_does_not_collapse():
    found = intervals.rate_interval([5] * 10, [5] * 10)
    assert found.high == 1.0
    assert 0.5 < found.low < 0.8
    nothing = intervals.rate_interval([0] * 10, [5] * 10)
    assert (nothing.low, nothing.high) == (0.0, pytest.approx(1 - found.low))
    wide = intervals.rate_interval([5] * 5 + [0] * 5, [5] * 10)
    tight = intervals.rate_interval([1] * 25 + [0] * 25, [1] * 50)
    assert wide.high - wide.low > tight.high - tight.low
    assert intervals.rate_interval([3], [5]) is None  # one row says nothing about others


def test_a_rate_interval_of_many_rows_is_wilsons():
    found = intervals.rate_interval([1] * 1800 + [0] * 200, [1] * 2000)
    assert (found.low, found.high) == (pytest.approx(0.88607, abs=2e-4), pytest.approx(0.91240, abs=2e-4))


def test_grades_between_0_and_1_have_an_interval_between_them():
    high = intervals.bounded_interval([1.0, 1.0, 1.0, 0.9], [1] * 4)
    assert 0.7 < high.low < 0.975 < high.high <= 1.0
    assert intervals.mean_interval([1.0, 1.0, 1.0, 0.9], [1] * 4).high > 1.0
    same = intervals.bounded_interval([0.5] * 8, [1] * 8)
    assert (same.low, same.high) == (0.5, 0.5)
    near, exact = (intervals.bounded_interval([0.5 + d, 0.5 - d] * 4, [1] * 8) for d in (1e-3, 1e-9))
    assert near.high - near.low < 0.003
    assert exact.high - exact.low < 1e-8


@pytest.mark.parametrize(("rate", "rows"), [(0.9, 8), (0.9, 20), (0.5, 8)])
def test_rates_of_few_rows_are_covered_as_often_as_they_say(rate, rows):
    source = random.Random(3)
    hits = 0
    for _ in range(400):
        passes = []
        for _ in range(rows):
            level = source.betavariate(rate * 0.7, (1 - rate) * 0.7)
            passes.append(sum(source.random() < level for _ in range(5)))
        found = intervals.rate_interval(passes, [5] * rows)
        hits += found.low <= rate <= found.high
    assert hits / 400 > 0.91  # the plain t interval: 0.71 for the first


def test_the_bootstrap_is_the_same_every_time():
    source = random.Random(2)
    values = [source.gauss(0.2, 1) for _ in range(50)]
    first = intervals.bootstrap_interval(values)
    assert first == intervals.bootstrap_interval(values)
    assert first.low < sum(values) / 50 < first.high


def test_a_distribution_of_one_value_is_that_value():
    assert intervals.distribution([3.0]).p99 == 3.0
    assert intervals.distribution([]) is None
