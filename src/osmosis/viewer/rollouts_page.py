import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson

from osmosis.metrics.formats import score as format_score
from osmosis.viewer.columns import (
    DEFAULT_COLUMNS,
    FIXED,
    Cell,
    TableColumn,
    build_cell,
    build_columns,
    find_column,
    short_name,
)
from osmosis.viewer.index.search import FILTERS, OUTCOMES, RolloutKey, RolloutLine, RolloutQuery, parse_query
from osmosis.viewer.page import Document, Page, QueryParams, run_header
from osmosis.viewer.run_source import RunSource, RunState

PER_PAGE = 50
FORMULA_STARTS = tuple("\t\r=+-@")


@dataclass(frozen=True, slots=True)
class AttemptCell:
    number: int
    url: str
    outcome: str
    text: str
    title: str
    fits: bool


@dataclass(frozen=True, slots=True)
class TableLine:
    label: str
    url: str
    attempts: Sequence[AttemptCell]
    cells: Sequence[Cell]


@dataclass(frozen=True, slots=True)
class Heading:
    column: TableColumn
    url: str
    order: str


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
        "quick": _quick_views(run),
        "many": many,
    }
    final = run.over and table.progress.complete
    return Page("rollouts.html", values, ("run", "found"), live="_rollouts.html", final=final)


def _row_line(run: RunState, attempts: Sequence[RolloutLine], columns: Sequence[TableColumn], tail: str) -> TableLine:
    cells = [build_cell(column, column.combine(attempts)) for column in columns]
    first = next((rollout for rollout in attempts if rollout.fits), attempts[0])
    return _line(run, str(first.row_index), first, attempts, cells, tail)


def _line(
    run: RunState, label: str, first: RolloutLine, attempts: Sequence[RolloutLine], cells: Sequence[Cell], tail: str
) -> TableLine:
    links = [
        AttemptCell(
            rollout.attempt,
            rollout_url(run, rollout.key, tail),
            rollout.outcome,
            _attempt_text(rollout),
            _attempt_title(rollout),
            rollout.fits,
        )
        for rollout in attempts
    ]
    label = f"{first.step}: {label}" if run.has_steps else label
    return TableLine(label, rollout_url(run, first.key, tail), links, cells)


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


def _heading(column: TableColumn, query: RolloutQuery, params: QueryParams) -> Heading:
    if not column.sort:
        return Heading(column, "", "")
    is_sorted = query.sort == column.sort
    direction = "up" if is_sorted and query.down else "down"
    order = ("descending" if query.down else "ascending") if is_sorted else ""
    return Heading(column, params.link(sort=column.sort, dir=direction, at=None), order)


def _choice_title(name: str, column: TableColumn) -> str:
    kind, _, rest = name.partition(":")
    return f"{kind} {short_name(rest) if kind == 'score' else rest}" if rest else column.title


def _quick_views(run: RunState) -> list[tuple[str, str]]:
    views = (
        ("Failed", {"outcome": "failed"}),
        ("Attempts disagree", {"agree": "no"}),
        ("Lowest reward", {"sort": "reward"}),
        ("Most tokens", {"sort": "tokens"}),
        ("Slowest", {"sort": "duration"}),
        ("Labelled", {"label": "*"}),
        ("To label", {"label": "-"}),
        ("Least sure, to label", {"label": "-", "sort": "unsure", "by": "rollout"}),
        ("Disagreeing, to label", {"label": "-", "agree": "no"}),
    )
    return [(name, f"{run.url}/rollouts?{urlencode(query)}") for name, query in views]


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
