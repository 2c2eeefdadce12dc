"""The mean that people would give: a kind judge is corrected, and the interval holds the truth in simulated runs."""

from __future__ import annotations

from random import Random

import pytest

from osmosis.metrics.powered_mean import powered_mean, powered_means
from osmosis.records.run.annotations import Annotation

TRUTH, LABELLED, OTHERS, DRAWS = 0.7, 20, 60, 200


def test_a_judge_who_is_too_kind_is_corrected() -> None:
    source, covered, width, alone, means = Random(3), 0, 0.0, 0.0, 0.0
    for _ in range(DRAWS):
        people = [float(source.random() < TRUTH) for _ in range(LABELLED + OTHERS)]
        judge = [person or float(source.random() < 0.3) for person in people]
        rows = list(zip(judge, people, strict=True))
        mean = powered_mean(rows[:LABELLED], judge[LABELLED:], (0.0, 1.0))
        labels = powered_mean(rows[:LABELLED], (), (0.0, 1.0))
        assert mean.interval is not None
        assert labels.interval is not None
        covered += mean.interval.low <= TRUTH <= mean.interval.high
        width += (mean.interval.high - mean.interval.low) / DRAWS
        alone += (labels.interval.high - labels.interval.low) / DRAWS
        means += mean.mean / DRAWS
    assert covered >= 0.95 * DRAWS
    assert means == pytest.approx(TRUTH, abs=0.02)  # the judge's mean is 0.79
    assert width < 0.92 * alone


def test_a_judge_without_a_clue_has_no_weight() -> None:
    labelled = [(float(i % 2), float(i % 4 < 2)) for i in range(40)]
    mean = powered_mean(labelled, [0.0] * 30, (0.0, 1.0))
    assert (mean.weight, mean.mean, mean.people) == (0.0, 0.5, 0.5)
    few = powered_mean(labelled[:8], [1.0] * 30, (0.0, 1.0))
    assert few.interval is None
    assert powered_mean(labelled, [1.0] * 30, None).interval is None


def test_labels_and_failures_of_a_run() -> None:
    lines = [
        {"row_index": row, "attempt": 0, "rollout_id": f"r{row}", "scores": {"judge": {"value": 4.0 + row % 2}}}
        for row in range(6)
    ]
    lines += [{"row_index": 6, "attempt": 0, "rollout_id": "r6", "status": "failed"}]
    lines += [{"row_index": 7, "attempt": 0, "rollout_id": "r7", "status": "skipped"}]
    notes = [
        Annotation(row_index=0, attempt=0, author="ada", label="wrong"),
        Annotation(row_index=1, attempt=0, author="ada", label="right"),
        Annotation(row_index=2, attempt=0, author="ada", score=3.0),
        Annotation(row_index=3, attempt=0, author="ada", label="right", rollout_id="an earlier one"),
        Annotation(row_index=4, attempt=0, author="ada", label="unsure"),
    ]
    mean = powered_means(notes, lines, {"judge": (1.0, 5.0)})["judge"]
    assert (mean.rows, mean.labelled_rows) == (7, 3)
    assert (mean.judge, mean.people) == (pytest.approx(27 / 7), pytest.approx((1 + 5 + 3) / 3))
    assert "of 3 of 7 rows" in mean.line("judge")
