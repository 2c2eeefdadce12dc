from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.errors import NotFound
from osmosis.metrics.agreement import Calibrated, calibrated, verdicts
from osmosis.metrics.fatal_step import find_fatal_step
from osmosis.records.run.annotations import LABELS
from osmosis.records.run.rollout import ModelCall, Rollout, list_functions
from osmosis.viewer.compare_page import Side, build_pair_page
from osmosis.viewer.conversation import build_turns
from osmosis.viewer.diff import diff_words
from osmosis.viewer.index import message_text
from osmosis.viewer.page import Page, QueryParams
from osmosis.viewer.rollouts_page import carry_filter, rollout_url
from osmosis.viewer.run_source import RunContext, RunSource, RunState
from osmosis.viewer.search import RolloutKey, expected_answer, parse_query

MAX_CALIBRATED = 400
MIN_SPAN_WIDTH = 0.3  # Percent of the timeline: the shortest span stays visible
MIN_GAP_MS = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    kind: Literal["model", "tools", "agent"]
    label: str
    started_ms: float
    duration_ms: float
    left: float
    width: float
    call: ModelCall | None = None
    message: int | None = None
    failed: bool = False


def rollout_page(source: RunSource, row_index: int, attempt: int, params: QueryParams) -> Page:
    step = params.integer("step") or 0
    record = Rollout.model_validate_json(source.rollout(row_index, attempt, step))
    run, search = source.state(), source.table().search
    if (beside := params.integer("beside")) is not None:
        return _pair_page(source, (row_index, attempt, step), (row_index, attempt, beside))
    if (against := params.integer("against")) is not None:
        return _pair_page(source, (row_index, attempt, step), (row_index, against, step))
    query, tail = parse_query(params), carry_filter(params)
    if params.text("only") == "step":
        tail = f"{tail}&only=step".lstrip("&")
    else:
        query = replace(query, step=None)
    near = search.neighbours(row_index, attempt, step, query)
    attempts = search.attempts(row_index, step)
    row = search.dataset_row(row_index, record.hashes.get("row"))
    context, annotations = source.context(), source.annotations()
    in_step = run.has_steps and params.text("only") == "step"
    back = params.without("step", "only").link(step=step if in_step else None)
    expected = expected_answer(row)
    answers = (message_text(message) for message in reversed(record.messages) if message.get("role") == "assistant")
    answer = next(answers, "")
    parts = {
        "outcome": next((line.outcome for line in attempts if line.attempt == attempt), "failed"),
        "before": _neighbour(run, near.before, tail),
        "after": _neighbour(run, near.after, tail),
        "next_failed": _neighbour(run, near.next_failed, tail),
        "back": f"{run.url}/rollouts{back}".rstrip("?"),
        "reward": next(iter(search.score_names()), ""),
        "siblings": [
            (line.attempt, line.outcome, rollout_url(run, (row_index, line.attempt, step), tail)) for line in attempts
        ],
        "steps": [  # others of a training run with this row, and where both rollouts are side by side
            (other, f"{rollout_url(run, (row_index, attempt, step))}&beside={other}")
            for other in search.steps(row_index)
            if other != step
        ],
        "row": row,
        "answer": {"expected": expected, "answer": answer, "diff": diff_words(expected, answer)},
        "spans": build_timeline(record),
        "calibrated": {
            score.score: score
            for score in build_calibrations(source)
            if score.score_hash == record.hashes.get("score", "")
        },
    }
    mine = [annotation for annotation in annotations if annotation.place == (record.step, *record.place)]
    own = next((annotation for annotation in mine if annotation.author == context.author), None)
    form = f"{run.url}/rollouts/{row_index}/{attempt}/annotate{params.link()}"
    values = {
        "run": run,
        "context": context,
        "judged": {"said": mine, "own": own, "url": form if context.author else ""},
        "labels": LABELS,
        "record": record,
        "found": parts,
        "turns": build_turns(record.messages),
        "call_of": dict(zip(record.answers, record.own_calls, strict=False)),
        "steps": {} if run.has_steps else {message: step for step, message in enumerate(record.answers, 1)},
        "branched": _read_branches(record, context, run.model),
        "total": len(record.messages),
        "artifacts": list(context.artifacts(record)),
    }
    return Page("rollout.html", values, ("run", "found", "judged", "record"))


def _pair_page(source: RunSource, key: RolloutKey, other: RolloutKey) -> Page:
    """Build the page of a row's rollouts in two steps, or of two attempts, the earlier on the left."""
    run, pair = source.state(), sorted((key, other), key=lambda number: (number[2], number[1]))
    records = [Rollout.model_validate_json(source.rollout(*each)) for each in pair]
    names = [f"step {each[2]}" if key[2] != other[2] else f"attempt {each[1]}" for each in pair]
    sides = [Side(run.url, replace(run, name=name), None, None) for name in names]
    values = {"row": key[0], "attempt": key[1], "near": ("", ""), "back": rollout_url(run, key), "run": run}
    values["urls"] = [rollout_url(run, each) for each in pair]
    return build_pair_page(sides, records, source.table().search, values)


def _neighbour(run: RunState, key: RolloutKey | None, tail: str) -> dict[str, str] | None:
    if key is None:
        return None
    step = f"step {key[2]}, " if run.has_steps else ""
    return {"url": rollout_url(run, key, tail), "title": f"{step}row {key[0]}, attempt {key[1]}"}


def _read_branches(record: Rollout, context: RunContext, model: str) -> dict[str, object] | None:
    if context.branches is None or not record.answers:
        return None
    branches = context.branches(record.rollout_id)
    plain = {each.branch.step: each for each in branches if not each.branch.texts and each.model == model}
    counts = {step: (each.passed, each.continuations) for step, each in plain.items()}
    return {"every": branches, "plain": plain, "fatal": find_fatal_step(len(record.answers), counts)}


def build_calibrations(source: RunSource) -> list[Calibrated]:
    annotations = source.annotations()
    if not annotations:
        return []
    places = list(dict.fromkeys(annotation.place for annotation in annotations))[:MAX_CALIBRATED]
    rollouts = _read_rollouts(source, places)
    return list(calibrated(verdicts(annotations, rollouts, source.state().pass_threshold)))


def _read_rollouts(source: RunSource, places: list[tuple[int, int, int]]) -> Iterator[JsonObject]:
    for step, row_index, attempt in places:
        try:
            yield orjson.loads(source.rollout(row_index, attempt, step))
        except NotFound:  # annotated, and then removed by a retry
            continue


def build_timeline(rollout: Rollout) -> Sequence[Span]:
    """Return model calls and the times between, in order: the tools' after a call for them, else the agent's."""
    calls = sorted(rollout.calls, key=lambda call: call.started_ms)
    if not calls:
        return ()
    answers = dict(zip(map(id, rollout.own_calls), rollout.answers, strict=False))
    end = max(rollout.duration_ms, *(call.started_ms + call.duration_ms for call in calls)) or 1.0
    spans: list[Span] = []
    now, tools = 0.0, ""
    for number, call in enumerate(calls):
        if call.started_ms - now > MIN_GAP_MS:
            spans.append(_gap(tools, now, call.started_ms - now, end))
        message = answers.get(id(call))
        label = f"model call {number + 1}" + (", failed" if call.error else "")
        position = _position(call.started_ms, call.duration_ms, end)
        failed = call.error is not None
        spans.append(Span("model", label, call.started_ms, call.duration_ms, *position, call, message, failed))
        now = max(now, call.started_ms + call.duration_ms)
        functions = list_functions(rollout.messages[message]) if message is not None else []
        tools = ", ".join(str(function.get("name")) for function in functions)
    if end - now > MIN_GAP_MS:
        spans.append(_gap(tools, now, end - now, end))
    return spans


def _gap(tools: str, started_ms: float, duration_ms: float, end_ms: float) -> Span:
    position = _position(started_ms, duration_ms, end_ms)
    return Span("tools" if tools else "agent", tools or "agent", started_ms, duration_ms, *position)


def _position(started_ms: float, duration_ms: float, end_ms: float) -> tuple[float, float]:
    width = max(MIN_SPAN_WIDTH, 100 * duration_ms / end_ms)
    return round(min(100 * started_ms / end_ms, 100 - width), 2), round(width, 2)
