"""Figures of the attempts at a row."""

import pytest
from pydantic import TypeAdapter

from osmosis.errors import ValidationError
from osmosis.metrics.score_values import reducer
from osmosis.metrics.summary import Terms, summarize
from osmosis.records.run.rollout import Failure, Rollout, Score
from osmosis.records.run.rows import ReducerName


def rows(*attempts):
    """Rollouts of rows, given the scores of their attempts; None has failed."""
    broken = Failure(phase="model", category="timeout", message="late")
    return [
        Rollout(
            rollout_id=f"{row}-{n}", row_index=row, attempt=n,
            status="failed" if value is None else "success", failure=broken if value is None else None,
            scores={} if value is None else {"f": Score(name="f", value=value)},
        )
        for row, values in enumerate(attempts)
        for n, value in enumerate(values)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean", 0.5), ("median", 0.5), ("mode", 0.0), ("max", 1.0), ("at-least-1", 1.0), ("at-least-2", 1.0),
        ("at-least-3", 0.0), ("pass@2", 5 / 6), ("pass^2", 1 / 6),
    ],
)  # fmt: skip
def test_one_row(name, value):
    assert reducer(name).of([0.0, 0.0, 1.0, 1.0], 2) == pytest.approx(value)
    assert TypeAdapter(ReducerName).validate_python(name) == name


@pytest.mark.parametrize("name", ["avg", "at-least-0", "at-least-", "pass@", "pass@x", "pass@1.5", ""])
def test_a_name_that_is_none(name):
    with pytest.raises(ValidationError, match="no reducer"):
        reducer(name)


def test_more_than_there_are_attempts():
    with pytest.raises(ValidationError, match="at least 4 attempts per row, there are 3"):
        reducer("pass@4", attempts=3)
    assert reducer("at-least-3").of([1.0, 1.0], 2) is None


def test_over_rows_with_failures_as_zeros_and_rows_that_are_short_left_out():
    terms = Terms(3, 1.0, score_bounds={"f": (0.0, 1.0)}, reducers=["median", "mode", "at-least-2", "pass@3"])
    found = summarize(rows([1.0, 1.0, 0.2], [None, 1.0, None], [0.4, 0.4, 1.0], [1.0, 1.0]), terms).primary
    reduced = {one.name: one for one in found.reduced}
    assert reduced["median"].value == pytest.approx((1.0 + 0.0 + 0.4 + 1.0) / 4)
    assert reduced["mode"].value == pytest.approx((1.0 + 0.0 + 0.4 + 1.0) / 4)
    assert (reduced["at-least-2"].value, reduced["at-least-2"].rows) == (0.5, 4)
    assert (reduced["pass@3"].value, reduced["pass@3"].rows) == (1.0, 3)
    assert all(0 <= one.interval.low <= one.value <= one.interval.high <= 1 for one in found.reduced)


def test_on_a_declared_scale_the_interval_is_on_it_but_a_share_is_a_share():
    terms = Terms(2, 4.0, score_bounds={"f": (0, 5)}, reducers=["median", "at-least-1"])
    found = summarize(rows([5.0, 4.0], [3.0, 0.0], [4.0, 5.0]), terms).primary
    median, least = found.reduced
    assert 1 < median.interval.high <= 5
    assert (least.value, least.interval.high <= 1) == (pytest.approx(2 / 3), True)
