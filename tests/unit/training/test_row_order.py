"""The order of rows: from the seed alone, no row twice in a step, every row equally often over enough passes."""

from __future__ import annotations

from collections import Counter

import pytest

from osmosis.errors import ValidationError
from osmosis.training.protocol.plans import rows_of_step, steps_in


def test_a_step_has_the_same_rows_whoever_asks_and_none_twice() -> None:
    rows = [3, 1, 4, 15, 9, 2, 6]
    for step in range(1, 10):
        found = rows_of_step(rows, 3, step, seed=5)
        assert found == rows_of_step(rows, 3, step, seed=5)
        assert len(set(found)) == 3
    assert [rows_of_step(rows, 3, n, 5) for n in range(1, 7)] != [rows_of_step(rows, 3, n, 6) for n in range(1, 7)]


def test_passes_differ_and_leave_out_different_rows() -> None:
    rows = list(range(7))
    counts = Counter(row for step in range(1, 141) for row in rows_of_step(rows, 3, step, seed=0))
    assert set(counts) == set(rows)
    assert min(counts.values()) > 45  # 60 on average
    first, second = ([row for n in (a, a + 1) for row in rows_of_step(rows, 3, n, 0)] for a in (1, 3))
    assert len(set(first)) == len(set(second)) == 6
    assert first != second


def test_too_few_rows_for_a_step_say_what_to_change() -> None:
    assert steps_in(10, 4, 3) == 6
    with pytest.raises(ValidationError, match="has 3 rows to train on, and a step takes 4") as caught:
        steps_in(3, 4, 1)
    assert "rollout_batch_size to 3" in str(caught.value.hint)
