"""The rollouts of a run as a list: what failed and what was wrong first, with question, answer and reason."""

from dataclasses import dataclass
from typing import Literal, get_args

from osmosis.base.jsonable import JsonObject
from osmosis.cli.core.results import Column, build_columns, clean
from osmosis.cli.eval.run_sources import StoredRun, is_same_row
from osmosis.records.run.rollout import Message, Rollout, RolloutStatus
from osmosis.records.run.rows import Row
from osmosis.sdk.chat import text_of

Outcome = Literal["failed", "wrong", "skipped", "passed"]
ORDER: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True)
class LineQuery:
    limit: int = 50
    outcome: Outcome | None = None
    below: float | None = None


def list_lines(run: StoredRun, query: LineQuery) -> tuple[list[JsonObject], int]:
    """Return the first lines, and how many rollouts match."""
    matching = []
    for rollout in run.outcomes():
        value, outcome = judge(run, rollout)
        if query.outcome in (None, outcome) and (query.below is None or (value is not None and value < query.below)):
            worth = value if value is not None else float("-inf")
            matching.append((ORDER.index(outcome), worth, rollout.row_index, rollout.attempt, rollout.key))
    matching.sort(key=lambda entry: entry[:4])
    shown = matching[: query.limit]
    rows = run.rows([row_index for _, _, row_index, _, _ in shown]) if shown else {}
    lines = [_build_line(run, run.read(key), rows.get(row_index)) for _, _, row_index, _, key in shown]
    return lines, len(matching)


def judge(run: StoredRun, rollout: Rollout) -> tuple[float | None, Outcome]:
    """Return the primary score and what it means."""
    if rollout.status is RolloutStatus.SKIPPED:
        return None, "skipped"
    score = rollout.scores.get(run.primary or "") or next(iter(rollout.scores.values()), None)
    value = score.value if score is not None else None
    if rollout.failure is not None or value is None:
        return value, "failed"
    return value, "passed" if value >= run.pass_threshold else "wrong"


def _build_line(run: StoredRun, rollout: Rollout, row: Row | None) -> JsonObject:
    value, outcome = judge(run, rollout)
    score = rollout.scores.get(run.primary or "") or next(iter(rollout.scores.values()), None)
    failure = rollout.failure or next((score.failure for score in rollout.scores.values() if score.failure), None)
    expected = row.ground_truth if row is not None and is_same_row(row, rollout) else None
    reason = score.reason if score is not None else None
    return {
        "place": f"{rollout.row_index}/{rollout.attempt}",
        "row_index": rollout.row_index,
        "attempt": rollout.attempt,
        "status": rollout.status.value,
        "outcome": outcome,
        "score": value,
        "prompt": find_text(rollout.messages, "user"),
        "expected": expected,
        "answer": find_text(rollout.messages[::-1], "assistant"),
        "reason": failure.message if failure is not None else reason,
        "failure": failure.category.value if failure is not None else None,
        "tokens": rollout.usage.total_tokens,
        "duration_ms": rollout.duration_ms,
    }


def find_text(messages: list[Message], role: str) -> str | None:
    return next((text for message in messages if message.get("role") == role and (text := text_of(message))), None)


def _start(value: object) -> str:
    return _cut(value, 60)


def _cut(value: object, size: int) -> str:
    text = " ".join(clean(value).split())
    return text if len(text) <= size else f"{text[: size - 1]}…"


def _end(value: object) -> str:
    text = " ".join(clean(value).split())
    return text if len(text) <= 50 else f"…{text[-49:]}"


COLUMNS = (
    *build_columns("place=Row", "outcome=Outcome"),
    Column("score", "Score", "right", show=lambda value: "-" if value is None else f"{value:g}"),
    Column("prompt", "Question", show=_start),
    Column("expected", "Expected", show=_start),
    Column("answer", "Answer", show=_end),
    Column("reason", "Why", show=lambda value: _cut(value, 80)),
)
