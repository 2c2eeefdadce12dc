"""How many rows and attempts a comparison is planned with, against comparisons that are simulated."""

from random import Random

import pytest

from osmosis.metrics.intervals import difference_of, verdict_of
from osmosis.metrics.planning import Pilot, pilot_of, variances
from osmosis.metrics.summary import Terms, summarize
from support.platform_data import rollout

SIMULATED = 200


def attempts_at(source: Random, rates: list[float], attempts: int) -> list[list[float]]:
    return [[float(source.random() < rate) for _ in range(attempts)] for rate in rates]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("spread", ["a few rows pass that never did", "every row passes a little more often"])
def test_as_many_rows_as_planned_show_the_difference_in_four_of_five_comparisons(attempts: int, spread: str) -> None:
    source = Random(7)
    pilot = pilot_of([attempts_at(source, source.choices([0.3, 0.6], k=400), attempts)], declared=(0.0, 1.0))
    rows = pilot.rows_needed(0.1, attempts)
    assert rows is not None
    found = 0
    for _ in range(SIMULATED):
        before = source.choices([0.3, 0.6], k=rows)
        if spread.startswith("a few"):
            after = [1.0 if source.random() < 0.1 / 0.55 else rate for rate in before]
        else:
            after = [rate + 0.1 for rate in before]
        a, b = attempts_at(source, before, attempts), attempts_at(source, after, attempts)
        changes = [(sum(y) - sum(x)) / attempts for x, y in zip(a, b, strict=True)]
        found += verdict_of([difference_of(changes, (0.0, 1.0), (0.0, 1.0))])[0] == "better"
    assert found >= 0.75 * SIMULATED
    fewer = pilot.detectable(rows // 4, attempts)
    assert fewer is not None
    assert 0.15 < fewer < 0.35, "a quarter of the rows shows about twice the difference"


def test_variance_is_divided_into_that_of_rows_and_that_of_attempts() -> None:
    source = Random(3)
    rows = attempts_at(source, source.choices([0.1, 0.9], k=3000), 4)
    between, within = variances([(sum(row), sum(row), len(row)) for row in rows])
    assert between == pytest.approx(0.16, abs=0.01)
    assert within == pytest.approx(0.09, abs=0.01)
    assert variances([(sum(row), sum(row), len(row)) for row in (row[:1] for row in rows)]) == (
        0.0,
        pytest.approx(0.25, abs=0.01),
    )


def test_attempts_do_not_replace_rows_that_change_each_in_its_own_way() -> None:
    pilot = Pilot(60, 1, between=0.0, within=0.2, effect=0.0, extremes=(0.0, 1.0))
    assert pilot.attempts_needed(0.03, 60) is None
    assert pilot.attempts_needed(0.4, 60) == 1
    assert pilot.attempts_needed(0.15, 60) in range(2, 20)
    both_ways = Pilot(60, 1, between=0.0, within=0.2, effect=0.3, extremes=(0.0, 1.0))
    assert both_ways.detectable(60, 1) > pilot.detectable(60, 1)  # type: ignore[operator]


def test_scores_that_are_all_equal_on_an_unknown_scale_plan_nothing() -> None:
    assert pilot_of([[[7.0], [7.0], [7.0]]]).detectable(3, 1) is None
    assert pilot_of([[[1.0]] * 60], declared=(0.0, 1.0)).detectable(60, 1) == pytest.approx(0.1, abs=0.06)


def test_a_report_has_what_its_rows_could_show_and_its_groups_have_not() -> None:
    rollouts = [rollout(row, attempt, float(row % 3 > 0)) for row in range(60) for attempt in range(2)]
    for made in rollouts:
        made.groups = {"kind": str(made.row_index % 2)}
    report = summarize(rollouts, Terms(2, 1.0, group_by=("kind",)))
    (score,) = report.scores
    pilot = pilot_of([[[float(row % 3 > 0)] * 2 for row in range(60)]])
    assert score.could_show == pilot.detectable(60, 2)
    assert score.could_show is not None
    assert [group.scores[0].could_show for group in report.groups] == [None, None]
