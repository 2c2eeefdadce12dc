"""One rollout: what was asked and expected, what was answered, how it was judged, and everything that happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from osmosis.metrics.calibration import Calibrated
from osmosis.records.annotation import LABELS
from osmosis.records.rollout import ModelCall, Rollout

from .annotating import judgement
from .answer_diff import DiffPiece, pieces
from .asked import Asked
from .calibration import calibrations
from .conversation import turns
from .index.found import expected_of
from .index.line import said
from .index.query import query_of
from .index.search import Key
from .rollouts_page import carried
from .source import RunSource, RunState
from .timeline import Span, answered_by, timeline
from .view import View


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """What was expected, beside what was said."""

    expected: str
    answer: str
    diff: Sequence[DiffPiece]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another rollout, and how to get there."""

    url: str
    title: str


@dataclass(frozen=True, slots=True)
class RolloutParts:
    """Everything on the page but the record itself."""

    outcome: str
    before: Neighbour | None
    after: Neighbour | None
    next_failed: Neighbour | None
    back: str
    """The table that one came from."""
    siblings: Sequence[tuple[int, str, str]]
    """Attempts at the same row: number, outcome, address."""
    row: Mapping[str, object]
    """Of the dataset; empty when it is gone or was edited since."""
    answer: AnswerComparison
    spans: Sequence[Span]
    calibrated: Mapping[str, Calibrated]
    """By score: beside people, of the version that scored this rollout."""


def rollout_page(source: RunSource, row_index: int, attempt: int, asked: Asked) -> View:
    """With `?step=N` that of a training step; the filter in the address says which are the ones before and after."""
    step = asked.number("step") or 0
    record = Rollout.model_validate_json(source.rollout(row_index, attempt, step))
    run, search = source.state(), source.table().search
    query = query_of(asked)
    if asked.text("only") != "step":
        query = replace(query, step=None)
    near = search.neighbours(row_index, attempt, step, query)
    tail = carried(asked) if asked.text("only") != "step" else f"{carried(asked)}&only=step".lstrip("&")
    others = search.attempts(row_index, step)
    row = search.dataset_row(row_index, record.hashes.get("row"))
    found = RolloutParts(
        outcome=next((one.outcome for one in others if one.attempt == attempt), "failed"),
        before=_neighbour(run, near.before, tail),
        after=_neighbour(run, near.after, tail),
        next_failed=_neighbour(run, near.next_failed, tail),
        back=_back(run, asked, step),
        siblings=[(one.attempt, one.outcome, _url(run, (row_index, one.attempt, step), tail)) for one in others],
        row=row,
        answer=_compared(record, row),
        spans=timeline(record),
        calibrated={one.score: one for one in calibrations(source) if one.score_hash == record.hashes.get("score", "")},
    )
    calls = answered_by(record.messages, sorted(record.calls, key=lambda call: call.started_ms))
    place = source.place()
    form = f"{run.url}/rollouts/{row_index}/{attempt}/annotate{asked.link()}"
    values = {
        "run": run,
        "place": place,
        "judged": judgement(source.annotations(), record, place.author, form),
        "labels": LABELS,
        "record": record,
        "found": found,
        "turns": turns(record.messages),
        "call_of": _calls(record, calls),
        "total": len(record.messages),
    }
    return View("rollout.html", values, ("run", "found", "judged", "record"))


def _calls(record: Rollout, answered: Mapping[int, int]) -> dict[int, ModelCall]:
    """The model call behind each message, by its place."""
    ordered = sorted(record.calls, key=lambda call: call.started_ms)
    return {message: ordered[number] for number, message in answered.items()}


def _compared(record: Rollout, row: Mapping[str, object]) -> AnswerComparison:
    expected = expected_of(row)
    answer = next((said(one) for one in reversed(record.messages) if one.get("role") == "assistant"), "")
    return AnswerComparison(expected, answer, pieces(expected, answer))


def _neighbour(run: RunState, key: Key | None, tail: str) -> Neighbour | None:
    if key is None:
        return None
    step = f"step {key[2]}, " if run.kind == "training" else ""
    return Neighbour(_url(run, key, tail), f"{step}row {key[0]}, attempt {key[1]}")


def _url(run: RunState, key: Key, tail: str) -> str:
    step = f"step={key[2]}" if run.kind == "training" else ""
    query = "&".join(part for part in (step, tail) if part)
    return f"{run.url}/rollouts/{key[0]}/{key[1]}" + (f"?{query}" if query else "")


def _back(run: RunState, asked: Asked, step: int) -> str:
    """The table, with the filter that one came with."""
    kept = [pair for pair in asked.pairs if pair[0] not in ("step", "only")]
    if run.kind == "training" and asked.text("only") == "step":
        kept.append(("step", str(step)))
    return f"{run.url}/rollouts" + (Asked(kept).link() if kept else "")
