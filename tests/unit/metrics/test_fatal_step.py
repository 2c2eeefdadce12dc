"""A planted fatal step is found in nine of ten cases within 40 continuations; seldom is another one called certain."""

from random import Random

import pytest

from osmosis.local.branch import search_steps
from osmosis.metrics.fatal_step import CERTAIN, Count, find_fatal_step

ROLLOUTS = 20


@pytest.mark.parametrize(("steps", "before", "after"), [(8, 0.8, 0.05), (20, 0.9, 0.0)])
def test_a_planted_step_is_found_in_40_continuations(steps: int, before: float, after: float) -> None:
    source, right, wrong = Random(4), 0, 0
    for _ in range(ROLLOUTS):
        fatal = source.randint(1, steps)
        counts: dict[int, Count] = {}

        def measure(step: int, n: int, fatal: int = fatal, counts: dict[int, Count] = counts) -> Count:
            passed, size = counts.get(step, (0, 0))
            return passed + sum(source.random() < (before if step <= fatal else after) for _ in range(n - size)), n

        result = search_steps(steps, counts, measure, 40)
        assert sum(n for _, n in counts.values()) <= 40
        right += result.fatal_step == fatal
        wrong += result.chance >= CERTAIN and result.fatal_step != fatal
    assert right >= 0.9 * ROLLOUTS
    assert wrong <= 1


def test_a_task_that_is_never_solved_has_no_fatal_step() -> None:
    result = find_fatal_step(10, {1: (0, 20), 5: (0, 4)})
    assert result.fatal_step == 0
    assert "from the first step on" in result.sentence
    assert result.curve[0].interval.high < 0.3


def test_the_curve_falls_after_the_fatal_step() -> None:
    result = find_fatal_step(6, {3: (9, 10), 4: (0, 10)})
    assert (result.fatal_step, result.chance > CERTAIN) == (3, True)
    assert result.curve[2].success > 0.7 > 0.3 > result.curve[3].success
    assert all(at.interval.low <= at.success <= at.interval.high for at in result.curve)
