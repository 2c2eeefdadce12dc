"""What is wrong with an answer that nobody failed."""

import pytest

from osmosis.metrics.figures import figures
from osmosis.metrics.summary import Terms, summarize
from osmosis.metrics.warnings import answer_issue
from osmosis.records.run.rollout import Rollout, Score


def said(content=None, **more):
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": content, **more}]


@pytest.mark.parametrize(
    ("messages", "reason", "issue"),
    [
        (said("4"), "stop", None),
        (said("4"), None, None),
        (said("4"), "length", "truncated"),
        (said("4"), "max_tokens", "truncated"),
        (said(""), "content_filter", "filtered"),
        (said(None, refusal="I cannot"), "stop", "refused"),
        (said("no"), "refusal", "refused"),
        (said("  \n"), "stop", "empty"),
        (said(None), "stop", "empty"),
        (said([{"type": "text", "text": " "}]), "stop", "empty"),
        (said([{"type": "text", "text": "4"}]), "stop", None),
        (said([{"type": "image_url", "image_url": {"url": "data:"}}]), "stop", None),
        (said(None, tool_calls=[{"id": "1"}]), "tool_calls", None),
        ([{"role": "user", "content": "?"}], None, None),
    ],
)
def test_issues(messages, reason, issue):
    assert answer_issue(messages, reason) == issue


def test_they_are_counted_and_shown_beside_the_first_score():
    def one(row, issue=None, reason="stop", status="success"):
        return Rollout(
            rollout_id=f"{row}", row_index=row, attempt=0, status=status, answer_issue=issue, finish_reason=reason,
            scores={"f": Score(name="f", value=0.0), "g": Score(name="g", value=1.0)},
        )  # fmt: skip

    found = summarize(
        [one(0), one(1, "empty"), one(2, "empty"), one(3, None, "length"), one(4, "refused", status="skipped")],
        Terms(1, 1.0),
    )
    assert [(issue.kind, issue.count, issue.rows) for issue in found.answer_issues] == [
        ("empty", 2, [1, 2]),
        ("truncated", 1, [3]),  # stored before issues were looked for
    ]
    shown = [figure for figure in figures(found) if figure.name in ("empty", "truncated")]
    assert [(figure.group, figure.text, figure.detail) for figure in shown] == [
        ("f", "2", "rows 1, 2; they count with their score"),
        ("f", "1", "rows 3; they count with their score"),
    ]
