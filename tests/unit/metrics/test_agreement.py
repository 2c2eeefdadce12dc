"""Agreement of a judge with people: kappa against a worked example, its interval against simulated judges."""

from __future__ import annotations

from random import Random

import pytest

from osmosis.metrics.agreement import agreement


def pairs(a: int, b: int, c: int, d: int, *, per_row: int = 1) -> list[tuple[int, bool, bool]]:
    cells = [(True, True)] * a + [(True, False)] * b + [(False, True)] * c + [(False, False)] * d
    return [(i // per_row, *cell) for i, cell in enumerate(cells)]


def test_kappa_of_a_worked_example() -> None:
    found = agreement(pairs(20, 5, 10, 15))
    assert found is not None
    assert (found.rate, found.kappa) == (0.7, pytest.approx(0.4))
    assert found.bias == pytest.approx(-0.1)
    assert (found.judge_only, found.person_only) == (5, 10)


def test_a_judge_that_flips_coins_agrees_by_chance_alone() -> None:
    found = agreement(pairs(25, 25, 25, 25))
    assert found is not None
    assert found.kappa == 0
    assert found.kappa_interval is not None
    assert found.kappa_interval.low == pytest.approx(-found.kappa_interval.high, abs=0.02)
    assert (found.bias_interval.low, found.rate_interval.low) == (
        pytest.approx(-0.149, abs=0.01),
        pytest.approx(0.398, abs=0.01),
    )


def test_where_nothing_can_be_said_nothing_is() -> None:
    assert agreement([]) is None
    always = agreement(pairs(30, 0, 0, 0))
    assert always is not None
    assert (always.rate, always.kappa, always.kappa_interval) == (1.0, None, None)
    few = agreement(pairs(3, 1, 1, 3))
    assert few is not None
    assert few.kappa == pytest.approx(0.5)
    assert few.kappa_interval is None


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "per_row"), [(10, 1), (20, 5)])
def test_the_intervals_hold_the_truth_where_labels_are_few_or_of_the_same_rows(rows: int, per_row: int) -> None:
    """People pass nine answers of ten, the judge sees 0.97 of the right and 0.6 of the wrong ones: kappa is 0.60."""
    source, hits, told = Random(7), 0, 0
    for _ in range(100):
        verdicts = []
        for row in range(rows):
            person = source.random() < 0.9
            verdicts += [(row, source.random() < (0.97 if person else 0.4), person) for _ in range(per_row)]
        found = agreement(verdicts)
        assert found is not None
        assert found.rows == rows
        if found.kappa_interval is not None:
            told += 1
            hits += found.kappa_interval.low <= 0.6 <= found.kappa_interval.high
    assert hits >= 0.92 * told > 60
