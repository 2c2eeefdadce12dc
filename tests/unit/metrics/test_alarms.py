"""What makes figures doubtful is said beside them."""

import pytest

from osmosis.metrics.warnings import alarms
from osmosis.records.run.report import AnswerIssueCount, FailureCount
from osmosis.records.run.rollout import Category, Phase
from support.platform_data import report


def failures(category, count):
    return [FailureCount(phase=Phase.AGENT, category=category, count=count, example="x")]


@pytest.mark.parametrize(
    ("category", "count", "alarm"),
    [(Category.TIMEOUT, 15, "timed out"), (Category.RATE_LIMIT, 20, "rate limit"), (Category.TIMEOUT, 3, None)],
)
def test_half_of_the_rollouts_lost_to_one_cause(category, count, alarm):
    found = alarms(report(failures=failures(category, count)), "openai/x", over=False)
    assert any(alarm in text for text in found) if alarm else found == []


def test_only_zeros_are_an_alarm():
    zeros = report().scores[0].model_copy(update={"max": 0.0, "min": 0.0})
    assert any("Every score" in text for text in alarms(report(scores=[zeros]), "openai/x"))


def test_a_stand_in_is_named_before_there_is_a_report():
    assert "stand-in" in alarms(None, "offline/calculator")[0]


def test_few_scores_are_an_alarm_once_nothing_is_to_come():
    found = report(coverage=0.9)
    assert alarms(found, "openai/x", over=False) == []
    assert "Only 90 %" in alarms(found, "openai/x")[0]


def test_answers_that_are_none_are_an_alarm_when_they_are_many():
    def found(count):
        issues = [AnswerIssueCount(kind="truncated", count=count, rows=[1])]
        return [text for text in alarms(report(answer_issues=issues), "openai/x", over=False) if "truncated" in text]

    assert found(1) == []
    assert "5 of" in found(5)[0]
