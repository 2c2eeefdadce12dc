"""The statistics against values known from elsewhere; Gaffke's bound against exact tests and drawn weights."""

import itertools
import math
import random

import pytest

from osmosis.base import stats
from osmosis.base.stats import BoundedMean, chance_below_zero


@pytest.mark.parametrize(("n", "c", "k"), [(7, 3, 1), (7, 3, 3), (10, 7, 3), (5, 0, 2), (5, 5, 2), (6, 4, 6)])
def test_pass_at_k_and_pass_hat_k_equal_counting_every_draw(n, c, k):
    draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
    assert stats.pass_at_k(n, c, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))
    assert stats.pass_hat_k(n, c, k) == pytest.approx(sum(all(d) for d in draws) / len(draws))


def test_the_published_example():
    assert stats.pass_at_k(10, 7, 3) == pytest.approx(0.9917, abs=1e-4)


def test_quantiles_interpolate():
    assert stats.quantile([1, 2, 3, 4], 0.5) == 2.5


def test_the_spread_of_sorted_values():
    found = stats.spread([0.0, 1.0, 1.0, 1.0, 1.0])
    assert (found.mean, found.min, found.median, found.max) == (0.8, 0.0, 1.0, 1.0)
    assert found.std == pytest.approx(0.4)
    assert stats.spread([]) is None


def at_least(n, x, p):
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(x, n + 1))


@pytest.mark.parametrize(("n", "x"), [(5, 5), (8, 0), (20, 19), (20, 10), (200, 3), (1000, 970)])
@pytest.mark.parametrize("p", [0.02, 0.3, 0.5, 0.9])
def test_of_yes_and_no_it_is_the_binomial_test(n, x, p):
    tails = BoundedMean([(1.0, 1)] * x + [(0.0, 1)] * (n - x), 0, 1).tails(p)
    assert tails.above == pytest.approx(at_least(n, x, p), rel=0.045, abs=1e-6)
    assert tails.below == pytest.approx(1 - at_least(n, x + 1, p), rel=0.045, abs=1e-6)


@pytest.mark.parametrize(("gained", "lost"), [(6, 0), (9, 1), (12, 5), (30, 12), (4, 4)])
@pytest.mark.parametrize("ties", [0, 50])
def test_of_flips_it_is_mcnemars_test(gained, lost, ties):
    n = gained + lost
    rows = [(1.0, 1)] * gained + [(-1.0, 1)] * lost + [(0.0, 1)] * ties
    exact = min(1.0, 2 * at_least(n, gained, 0.5))
    assert BoundedMean(rows, -1, 1).tails(0).p_value == pytest.approx(exact, rel=0.03)
    mid = min(1.0, 2 * (at_least(n, gained, 0.5) - math.comb(n, gained) / 2 ** (n + 1)))
    assert BoundedMean(rows, -1, 1, mid=True).tails(0).p_value == pytest.approx(mid, rel=0.03)


@pytest.mark.parametrize("seed", range(4))
def test_the_chance_is_that_of_drawn_weights(seed):
    source = random.Random(seed)
    terms = [(source.choice([1, 1, 3]), source.uniform(-1, 1)) for _ in range(12)]
    draws = 20_000
    below = sum(sum(scale * source.gammavariate(shape, 1) for shape, scale in terms) < 0 for _ in range(draws))
    assert chance_below_zero(terms) == pytest.approx(below / draws, abs=0.015)


def test_the_chance_is_smooth_at_the_mean_and_certain_on_one_side():
    near = [
        chance_below_zero([(3, 1.0 + shift), (3, -1.0), (1, 0.5), (1, -0.5)]) for shift in (-1e-3, -1e-6, 0, 1e-6, 1e-3)
    ]
    assert near == sorted(near, reverse=True)
    assert near[2] == pytest.approx(0.5, abs=1e-6)
    assert (chance_below_zero([(2, 1.0)]), chance_below_zero([(2, -1.0), (1, 0.0)])) == (0.0, 1.0)
    # A first step that ends exactly at a pole.
    poles = [(5, 0.6), (28, 0.2), (10, -0.2), (25, 0.4), (3, -0.4), (1, -0.6), (2, 0.8), (1.0, 1.0)]
    assert chance_below_zero(poles) < 1e-6


@pytest.mark.parametrize("mid", [False, True])
def test_an_interval_holds_exactly_what_its_tails_do_not_rule_out(mid):
    source = random.Random(8)
    for _ in range(60):
        rows = source.choice([2, 5, 30])
        sizes = [source.randint(0, 4) for _ in range(rows)]
        sums = [sum(source.choice([0.0, 0.3, 1.0]) for _ in range(size)) for size in sizes]
        one = BoundedMean(zip(sums, sizes, strict=True), 0, 1, mid=mid)
        low, high = one.interval(0.9)
        assert 0 <= low <= one.mean <= high <= 1
        for end, tail in ((low, "above"), (high, "below")):
            if 0 < end < 1 and sum(sizes):
                assert getattr(one.tails(end), tail) == pytest.approx(0.05, abs=1e-4)


def test_nothing_is_known_without_rows():
    assert BoundedMean([], 0, 5).interval() == (0, 5)
    assert BoundedMean([(0.0, 0)], 0, 5).tails(1).p_value == 1.0
    with pytest.raises(ValueError, match="two different numbers"):
        BoundedMean([(1.0, 1)], 1, 1)


@pytest.mark.parametrize("unit", [1e-300, 1e-180, 1e180, 1e300])
def test_the_unit_of_the_values_does_not_matter(unit):
    rows = [(0.0, 1), (0.25, 1), (1.0, 1), (0.5, 1)]
    low, high = BoundedMean(rows, 0, 1).interval()
    found = BoundedMean([(value * unit, n) for value, n in rows], 0, unit).interval()
    assert found == pytest.approx((low * unit, high * unit), rel=1e-6, abs=0)


def test_a_value_beside_which_others_are_nothing_has_an_interval():
    low, high = BoundedMean([(0.0, 1), (1e-200, 1), (0.0, 1)], 0, 1).interval()
    assert 0 <= low <= 1e-200 < high < 1
