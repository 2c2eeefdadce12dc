"""Strengths by pairwise preferences: a textbook's solution, intervals that hold the truth, Holm over pairs."""

from __future__ import annotations

import math
from random import Random

import pytest

from osmosis.metrics.bradley_terry import ELO, Outcomes, compare_pairs, fit_strengths, rank_runs

BASEBALL = [
    [0, 7, 9, 7, 7, 9, 11],
    [6, 0, 7, 5, 11, 9, 9],
    [4, 6, 0, 7, 7, 8, 12],
    [6, 8, 6, 0, 6, 7, 10],
    [6, 2, 6, 7, 0, 7, 12],
    [4, 4, 5, 6, 6, 0, 6],
    [2, 4, 1, 3, 1, 7, 0],
]
"""Seven teams of the American League in 1987: wins against each other (A. Agresti, Categorical Data Analysis)."""


def test_the_strengths_of_a_textbook() -> None:
    strengths = fit_strengths(BASEBALL, tie=0.0)
    assert [round(strength - strengths[-1], 2) for strength in strengths] == [1.58, 1.44, 1.29, 1.25, 1.11, 0.68, 0.0]


def test_of_two_runs_it_is_the_log_odds_with_half_a_win_more_on_either_side() -> None:
    first, second = rank_runs(["a", "b"], [{(0, 1): 1.0}] * 9 + [{(0, 1): 0.5}] * 2, draws=10)
    assert second.elo - first.elo == pytest.approx(ELO * math.log(10.5 / 1.5))


def test_a_run_that_wins_all_is_finite_and_its_interval_is_no_point() -> None:
    a, b = strengths = rank_runs(["a", "b"], [{(0, 1): 1.0}] * 30, draws=200)
    assert b.interval.low < b.elo < 400
    assert b.interval.low > 0 > a.interval.high
    (preference,) = compare_pairs(strengths, [{(0, 1): 1.0}] * 30)
    assert (preference.verdict, preference.wins_b, preference.rate) == ("better", 30, 1.0)
    assert preference.interval is not None
    assert 0.8 < preference.interval.low < preference.interval.high == 1.0
    assert str(preference).startswith("b is better than a: 30 wins, 0 ties, 0 losses, preferred in 100.0 %")


def test_ties_are_no_verdict_and_few_rows_none_either() -> None:
    for rows, verdict in (([{(0, 1): 0.5}] * 40, "no clear difference"), ([{(0, 1): 1.0}] * 3, "too few rows to tell")):
        strengths = rank_runs(["a", "b"], rows, draws=10)
        assert [preference.verdict for preference in compare_pairs(strengths, rows)] == [verdict]


def test_more_than_two_runs_are_corrected_and_rows_may_lack_pairs() -> None:
    wins: list[Outcomes] = [{(0, 1): 1.0, (0, 2): 1.0, (1, 2): 0.5}] * 6
    losses: list[Outcomes] = [{(0, 1): 0.0, (0, 2): 0.0}]
    rows = [*wins, *losses, {(1, 2): 0.5}]
    two: list[Outcomes] = [{(0, 1): row[0, 1]} for row in rows[:7]]
    alone = compare_pairs(rank_runs(["a", "b"], two, draws=5), two)
    both = compare_pairs(rank_runs(["a", "b", "c"], rows, draws=5), rows)
    assert [(preference.rows, preference.wins_b) for preference in both] == [(7, 6), (7, 6), (7, 0)]
    assert alone[0].p_value is not None
    assert both[0].p_value == pytest.approx(3 * alone[0].p_value)
    assert both[0].chance == pytest.approx(both[1].chance)
    assert both[2].chance == pytest.approx(0.5)


def test_the_interval_holds_the_true_strength() -> None:
    """`benchmarks/pairwise.py` does it in earnest."""
    source, chance, studies = Random(2), 0.65, 60
    truth, holds = ELO * math.log(chance / (1 - chance)) / 2, 0
    for _ in range(studies):
        rows = [{(0, 1): 0.5 if source.random() < 0.3 else float(source.random() < 0.714)} for _ in range(40)]
        interval = rank_runs(["a", "b"], rows, draws=100)[1].interval
        holds += interval.low <= truth <= interval.high
    assert holds >= 0.9 * studies
