import csv
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from statistics import fmean
from urllib.parse import urlencode

import orjson

from osmosis.metrics.formats import count, dollars, duration, number, score as format_score
from osmosis.viewer.page import Document, Page, QueryParams, run_header
from osmosis.viewer.run_source import RunSource, RunState
from osmosis.viewer.search import FILTERS, OUTCOMES, RolloutKey, RolloutLine, RolloutQuery, parse_query

PER_PAGE = 50
FORMULA_STARTS = tuple("\t\r=+-@")
Value = str | float | int | None
MAX_CELL = 140


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    title: str
    value: Callable[[RolloutLine], Value]
    write: Callable[[float], str] | None = None
    sort: str = ""  # The `sort` of the query that orders the table by it; empty when it cannot be sorted by
    added: bool = False  # True when the attempts at a row are summed instead of averaged
    help: str = ""
    is_end_first: bool = False  # True when the end of a long text says most: an answer's

    def text(self, value: Value) -> str:
        if value is None:
            return "–"
        return self.write(value) if self.write and not isinstance(value, str) else str(value)

    def combine(self, attempts: Sequence[RolloutLine]) -> Value:
        values = [value for rollout in attempts if (value := self.value(rollout)) is not None]
        numbers = [value for value in values if not isinstance(value, str)]
        if numbers:
            return sum(numbers) if self.added else fmean(numbers)
        texts = dict.fromkeys(str(value) for value in values if value)
        return " | ".join(texts) if texts else None


def _format_time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"


FIXED: Mapping[str, TableColumn] = {
    column.name: column
    for column in (
        TableColumn("prompt", "Prompt", lambda line: line.prompt, help="The first message of the user."),
        TableColumn("expected", "Expected", lambda line: line.expected, help="ground_truth or label of the dataset."),
        TableColumn(
            "answer", "Answer", lambda line: line.answer, help="The end of the model's last message.", is_end_first=True
        ),
        TableColumn("failure", "Failure", lambda line: (line.category or "").replace("_", " ") or None),
        TableColumn("turns", "Turns", lambda line: line.turns, partial(number, digits=1), "turns"),
        TableColumn("tokens", "Tokens", lambda line: line.tokens, count, "tokens", added=True),
        TableColumn("cost", "Cost", lambda line: line.cost, dollars, "cost", added=True),
        TableColumn("duration", "Duration", lambda line: line.duration_ms, duration, "duration"),
        TableColumn("tools", "Tool calls", lambda line: line.tool_calls, partial(number, digits=1), "tools"),
        TableColumn("message", "Failure message", lambda line: line.failure or None),
        TableColumn(
            "label", "Label", lambda line: ", ".join(line.labels) or None, help="Labels and comments by people."
        ),
        TableColumn("finish", "Finish reason", lambda line: line.finish_reason),
        TableColumn("issue", "Answer issue", lambda line: line.answer_issue),
        TableColumn("model", "Model", lambda line: line.model),
        TableColumn("started", "Started", lambda line: _format_time(line.started_at), sort="started"),
    )
}
DEFAULT_COLUMNS = ("prompt", "expected", "answer", "score", "failure", "turns", "tokens", "cost", "duration")
"""`score` stands for every score."""


def build_columns(names: Iterable[str], scores: Sequence[str]) -> list[TableColumn]:
    expanded: list[str] = []
    for name in list(names) or DEFAULT_COLUMNS:
        expanded += [f"score:{score}" for score in scores] if name == "score" else [name]
    columns = (find_column(name, reward=next(iter(scores), "")) for name in dict.fromkeys(expanded))
    return [column for column in columns if column is not None]


def find_column(name: str, reward: str = "") -> TableColumn | None:
    if name in FIXED:
        return FIXED[name]
    kind, _, rest = name.partition(":")
    if not rest:
        return None
    if kind == "score":
        sort = "reward" if rest == reward else name
        return TableColumn(name, short_name(rest), lambda line: line.scores.get(rest), format_score, sort, help=rest)
    if kind == "row":
        about = f"The dataset's column {rest}."
        return TableColumn(name, rest, lambda line: flatten(line.row.get(rest)), number, help=about)
    if kind in ("metric", "reason"):
        title = name.replace(":", " ")
        return TableColumn(name, title, lambda line: flatten(_get_nested(line.extra, kind, rest)), number)
    if kind in ("meta", "part"):
        score, _, key = rest.rpartition(".")
        return TableColumn(
            name, key, lambda line: flatten(_get_nested(line.extra, kind, score, key)), number, help=rest
        )
    return None


def short_name(score: str) -> str:
    return score.rpartition(":")[2]


def _get_nested(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def flatten(value: object) -> Value:
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return value
    return orjson.dumps(value, default=str).decode()


def build_cell(column: TableColumn, value: Value) -> dict[str, object]:
    text = column.text(value)
    is_number = column.write is not None and not isinstance(value, str)
    flat = " ".join(text.split())
    if len(flat) > MAX_CELL:
        flat = f"…{flat[1 - MAX_CELL :]}" if column.is_end_first else f"{flat[: MAX_CELL - 1]}…"
    return {"text": flat, "title": text, "number": is_number, "is_end_first": column.is_end_first}


def rollouts_page(source: RunSource, params: QueryParams) -> Page:
    run, table, query = source.state(), source.table(), parse_query(params)
    search, scores = table.search, table.search.score_names()
    many = search.most_attempts() > 1
    by = params.choice("by", ("row", "rollout"), "row" if many and run.kind == "eval" else "rollout")
    columns = build_columns(params.all("col"), scores)
    total = search.count_rows(query) if by == "row" else search.count(query)
    pages = max(1, math.ceil(total / PER_PAGE))
    at = min(max(1, params.integer("at") or 1), pages)
    offset, tail = (at - 1) * PER_PAGE, carry_filter(params)
    if by == "row":
        rows = search.rows(query, limit=PER_PAGE, offset=offset)
        lines = [_row_line(run, attempts, columns, tail) for attempts in rows]
    else:
        lines = []
        for rollout in search.rollouts(query, limit=PER_PAGE, offset=offset):
            cells = [build_cell(column, column.value(rollout)) for column in columns]
            lines.append(_line(run, f"{rollout.row_index}/{rollout.attempt}", rollout, [rollout], cells, tail))
    page = {
        "by": by,
        "lines": lines,
        "headings": [_heading(column, query, params) for column in columns],
        "total": total,
        "rollouts": search.count(query) if by == "row" else total,
        "outcomes": search.outcomes(),
        "at": at,
        "pages": pages,
        "progress": table.progress,
        "query": query,
    }
    chosen = {column.name for column in columns}
    names = [*FIXED, *(f"score:{name}" for name in search.score_names()), *(f"row:{name}" for name in search.columns())]
    names += [*search.extras(), *params.all("col")]
    options = ((name, find_column(name)) for name in dict.fromkeys(names))
    values = {
        **run_header(source, run, "rollouts"),
        "found": page,
        "categories": search.categories(),
        "tools": search.tool_names(),
        "scores": scores,
        "labels": search.labels(),
        "choices": [(name, _choice_title(name, column), name in chosen) for name, column in options if column],
        "params": params,
        "filtered": not query.plain,
        "outcomes": OUTCOMES,
        "many": many,
    }
    final = run.over and table.progress.complete
    return Page("rollouts.html", values, ("run", "found"), live="_rollouts.html", final=final)


def _row_line(
    run: RunState, attempts: Sequence[RolloutLine], columns: Sequence[TableColumn], tail: str
) -> dict[str, object]:
    cells = [build_cell(column, column.combine(attempts)) for column in columns]
    first = next((rollout for rollout in attempts if rollout.fits), attempts[0])
    return _line(run, str(first.row_index), first, attempts, cells, tail)


def _line(
    run: RunState, label: str, first: RolloutLine, attempts: Sequence[RolloutLine], cells: object, tail: str
) -> dict[str, object]:
    links = [
        {
            "number": rollout.attempt,
            "url": rollout_url(run, rollout.key, tail),
            "outcome": rollout.outcome,
            "text": _attempt_text(rollout),
            "title": _attempt_title(rollout),
            "fits": rollout.fits,
        }
        for rollout in attempts
    ]
    label = f"{first.step}: {label}" if run.has_steps else label
    return {"label": label, "url": rollout_url(run, first.key, tail), "attempts": links, "cells": cells}


def rollout_url(run: RunState, key: RolloutKey, tail: str = "") -> str:
    row_index, attempt, step = key
    query = "&".join(part for part in (f"step={step}" if run.has_steps else "", tail) if part)
    return f"{run.url}/rollouts/{row_index}/{attempt}" + (f"?{query}" if query else "")


def carry_filter(params: QueryParams) -> str:
    query = urlencode([pair for pair in params.pairs if pair[0] in FILTERS and pair[0] != "step"])
    return "&".join(part for part in (query, "only=step" if params.text("step") else "") if part)


def _attempt_text(rollout: RolloutLine) -> str:
    if rollout.reward is None:
        return "skip" if rollout.outcome == "skipped" else "fail"
    return format_score(rollout.reward).rstrip("0").rstrip(".") or "0"


def _attempt_title(rollout: RolloutLine) -> str:
    reason = f": {rollout.category.replace('_', ' ')}" if rollout.category else ""
    return f"attempt {rollout.attempt}: {rollout.outcome.replace('-', ' ')}{reason}"


def _heading(column: TableColumn, query: RolloutQuery, params: QueryParams) -> dict[str, object]:
    if not column.sort:
        return {"column": column, "url": "", "order": ""}
    is_sorted = query.sort == column.sort
    direction = "up" if is_sorted and query.down else "down"
    order = ("descending" if query.down else "ascending") if is_sorted else ""
    return {"column": column, "url": params.link(sort=column.sort, dir=direction, at=None), "order": order}


def _choice_title(name: str, column: TableColumn) -> str:
    kind, _, rest = name.partition(":")
    return f"{kind} {short_name(rest) if kind == 'score' else rest}" if rest else column.title


def export_rollouts(source: RunSource, params: QueryParams, kind: str) -> Document:
    search = source.table().search
    names = params.all("col") or [*DEFAULT_COLUMNS, "message", "model", "started"]
    columns = build_columns(names, search.score_names())
    rollouts = search.iterate(parse_query(params))
    name = f"{source.state().name}-rollouts.{kind}"
    if kind == "csv":
        return Document(_write_csv(rollouts, columns), "text/csv; charset=utf-8", name)
    return Document(_write_json(rollouts, columns), "application/json", name)


def _export_keys(rollout: RolloutLine) -> dict[str, object]:
    return {"step": rollout.step, "row": rollout.row_index, "attempt": rollout.attempt, "outcome": rollout.outcome}


def _write_csv(rollouts: Iterator[RolloutLine], columns: Sequence[TableColumn]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", "row", "attempt", "outcome", *(column.name for column in columns)])
    for rollout in rollouts:
        values = (column.value(rollout) for column in columns)
        writer.writerow([*_export_keys(rollout).values(), *map(_escape_formula, values)])
        if text.tell() > 1 << 16:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _escape_formula(value: str | float | None) -> str | float | None:
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_STARTS) else value


def _write_json(rollouts: Iterator[RolloutLine], columns: Sequence[TableColumn]) -> Iterator[bytes]:
    before = b"[\n"
    for rollout in rollouts:
        values = {column.name: column.value(rollout) for column in columns}
        yield before + orjson.dumps({**_export_keys(rollout), **values})
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"
