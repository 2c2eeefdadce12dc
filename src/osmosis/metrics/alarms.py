"""What a person should look at before trusting the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator

from osmosis.records.report import Report
from osmosis.records.rollout import Category

_CAUSES = (
    (Category.TIMEOUT, "timed out: the server may be overloaded, or a call blocks its event loop"),
    (Category.SERVER_DIED, "ended with the rollout server: see the log"),
    (Category.RATE_LIMIT, "hit a rate limit: lower the concurrency"),
)
_LITTLE_COVERAGE = 0.95
_MANY_ISSUES = 0.05
"""The share of rollouts without a proper answer from which on a mean says something else than it seems to."""


def alarms(report: Report | None, model: str, *, over: bool = True) -> list[str]:
    """Sentences, the most general first. `over`: nothing is still to come; `report` is None before the first one."""
    found = []
    if model.startswith("offline/"):
        found.append(f"{model} is a rule-based stand-in, not a language model.")
    if report is not None and report.completed:
        found += _lost_to_one_cause(report)
        primary = report.primary
        if primary and primary.scored >= 8 and primary.max == primary.min == 0:
            found.append("Every score so far is 0: open a rollout and check the grader and the answer's format.")
        found += _no_answers(report)
        if over and report.coverage < _LITTLE_COVERAGE:
            share = f"{report.coverage * 100:.0f} %"
            found.append(f"Only {share} of the rollouts have a score; interpret the means with care.")
    return found


def _no_answers(report: Report) -> Iterator[str]:
    for issue in report.answer_issues:
        if issue.count >= max(2, _MANY_ISSUES * report.succeeded):
            yield f"{issue.count} of {report.succeeded} answers were {issue.kind}: their scores count like all others."


def _lost_to_one_cause(report: Report) -> Iterator[str]:
    counts: dict[Category, int] = {}
    for failure in report.failures:
        counts[failure.category] = counts.get(failure.category, 0) + failure.count
    for category, text in _CAUSES:
        if counts.get(category, 0) * 2 >= report.completed >= 4:
            yield f"{counts[category]} of {report.completed} rollouts {text}."
