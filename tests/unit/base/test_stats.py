"""The statistics against values known from elsewhere."""

import itertools

import pytest

from osmosis.base import stats


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
