"""The table of a run's rollouts: a line per row with its attempts as cells, or a line per rollout; filtered, sorted and
with columns as its address says; and the same table as CSV and JSON, whole.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson

from osmosis.metrics.formats import score as score_text

from .asked import Asked
from .columns import FIXED, USUAL, Cell, TableColumn, cell, column, columns, short
from .index.file import IndexProgress
from .index.found import RolloutLine
from .index.query import FILTERS, OUTCOMES, RolloutQuery, query_of
from .index.search import Search
from .source import RunSource, RunState
from .view import Document, View, head

PER_PAGE = 50
GONE = "\t\r=+-@"
"""A text that begins so would be a formula where a CSV file is opened."""


@dataclass(frozen=True, slots=True)
class AttemptCell:
    """One attempt of a line."""

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
    """Sorts by it; empty when it cannot be sorted by."""
    order: str
    """`ascending`, `descending` or empty."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A column that can be chosen."""

    name: str
    title: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RolloutTablePage:
    by: str
    """`row` or `rollout`."""
    lines: Sequence[TableLine]
    headings: Sequence[Heading]
    total: int
    """How many lines fit."""
    rollouts: int
    """How many rollouts fit."""
    outcomes: dict[str, int]
    at: int
    pages: int
    progress: IndexProgress
    query: RolloutQuery


@dataclass(frozen=True, slots=True)
class _Form:
    """What the form above the table offers."""

    categories: Sequence[str]
    tools: Sequence[str]
    scores: Sequence[str]
    labels: Sequence[str]
    choices: Sequence[Choice]


def rollouts_page(source: RunSource, asked: Asked) -> View:
    run, table, query = source.state(), source.table(), query_of(asked)
    search, scores = table.search, table.search.score_names()
    many = search.most_attempts() > 1
    by = asked.one_of("by", ("row", "rollout"), "row" if many and run.kind == "eval" else "rollout")
    shown = columns(asked.all("col"), scores)
    total = search.count_rows(query) if by == "row" else search.count(query)
    pages = max(1, math.ceil(total / PER_PAGE))
    at = min(max(1, asked.number("at") or 1), pages)
    lines = list(_lines(run, search, query, by, shown, offset=(at - 1) * PER_PAGE, asked=asked))
    found = RolloutTablePage(
        by=by,
        lines=lines,
        headings=[_heading(one, query, asked) for one in shown],
        total=total,
        rollouts=search.count(query) if by == "row" else total,
        outcomes=search.outcomes(),
        at=at,
        pages=pages,
        progress=table.progress,
        query=query,
    )
    form = _Form(search.categories(), search.tool_names(), scores, search.labels(), _choices(search, shown, asked))
    values = {"found": found, "form": form, "asked": asked, "filtered": not query.plain, "outcomes": OUTCOMES,
              "quick": _quick(run), "many": many}  # fmt: skip
    final = run.over and found.progress.complete
    shown_values = {**head(source, run, "rollouts"), **values}
    return View("rollouts.html", shown_values, ("run", "found"), live="_rollouts.html", final=final)


def _lines(
    run: RunState,
    search: Search,
    query: RolloutQuery,
    by: str,
    shown: Sequence[TableColumn],
    *,
    offset: int,
    asked: Asked,
) -> Iterator[TableLine]:
    tail = carried(asked)
    if by == "row":
        for attempts in search.rows(query, limit=PER_PAGE, offset=offset):
            yield _line(run, attempts, shown, tail)
    else:
        for one in search.rollouts(query, limit=PER_PAGE, offset=offset):
            yield _line(run, [one], shown, tail, alone=True)


def _line(
    run: RunState, attempts: Sequence[RolloutLine], shown: Sequence[TableColumn], tail: str, *, alone: bool = False
) -> TableLine:
    first = next((one for one in attempts if one.fits), attempts[0])
    label = f"{first.row_index}" + (f".{first.attempt}" if alone else "")
    if run.kind == "training":
        label = f"{first.step}: {label}"
    cells = [cell(one, one.value(first) if alone else one.of_row(attempts)) for one in shown]
    made = [
        AttemptCell(
            one.attempt, rollout_url(run, one, tail), one.outcome, _attempt_text(one), _attempt_title(one), one.fits
        )
        for one in attempts
    ]
    return TableLine(label, rollout_url(run, first, tail), made, cells)


def rollout_url(run: RunState, one: RolloutLine, tail: str = "") -> str:
    """Where a rollout's page is; `tail` is the query it was found with."""
    step = f"step={one.step}" if run.kind == "training" else ""
    query = "&".join(part for part in (step, tail) if part)
    return f"{run.url}/rollouts/{one.row_index}/{one.attempt}" + (f"?{query}" if query else "")


def carried(asked: Asked) -> str:
    """The filter as the page of a rollout takes it, to go on to the next one by."""
    kept = asked.only(*(name for name in FILTERS if name != "step"))
    return "&".join(part for part in (kept, "only=step" if asked.text("step") else "") if part)


def _attempt_text(one: RolloutLine) -> str:
    if one.reward is None:
        return "skip" if one.outcome == "skipped" else "fail"
    return score_text(one.reward).rstrip("0").rstrip(".") or "0"


def _attempt_title(one: RolloutLine) -> str:
    why = f": {one.category.replace('_', ' ')}" if one.category else ""
    return f"attempt {one.attempt}: {one.outcome.replace('-', ' ')}{why}"


def _heading(one: TableColumn, query: RolloutQuery, asked: Asked) -> Heading:
    if not one.sort:
        return Heading(one, "", "")
    sorted_by = query.sort == one.sort
    turn = "up" if sorted_by and query.down else "down"
    order = ("descending" if query.down else "ascending") if sorted_by else ""
    return Heading(one, asked.link(sort=one.sort, dir=turn, at=None), order)


def _choices(search: Search, shown: Sequence[TableColumn], asked: Asked) -> list[Choice]:
    now = {one.name for one in shown}
    names = [*FIXED, *(f"score:{name}" for name in search.score_names()), *(f"row:{name}" for name in search.columns())]
    names += [*search.extras(), *asked.all("col")]
    found = ((name, column(name)) for name in dict.fromkeys(names))
    return [Choice(name, _choice_title(name, one), name in now) for name, one in found if one is not None]


def _choice_title(name: str, one: TableColumn) -> str:
    kind, _, rest = name.partition(":")
    return f"{kind} {short(rest) if kind == 'score' else rest}" if rest else one.title


def _quick(run: RunState) -> list[tuple[str, str]]:
    """Views that are often wanted."""
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


def exported(source: RunSource, asked: Asked, kind: str) -> Document:
    """Every rollout that the query wants, one after the other: `csv`, or a JSON list."""
    query, search = query_of(asked), source.table().search
    chosen = asked.all("col") or [*USUAL, "message", "model", "started"]
    shown = columns(chosen, search.score_names())
    name = f"{source.state().name}-rollouts.{kind}"
    if kind == "csv":
        return Document(_csv(search, query, shown), "text/csv; charset=utf-8", name)
    return Document(_json(search, query, shown), "application/json", name)


def _keys(one: RolloutLine) -> dict[str, object]:
    return {"step": one.step, "row": one.row_index, "attempt": one.attempt, "outcome": one.outcome}


def _csv(search: Search, query: RolloutQuery, shown: Sequence[TableColumn]) -> Iterator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["step", "row", "attempt", "outcome", *(one.name for one in shown)])
    for one in search.every(query):
        writer.writerow([*_keys(one).values(), *(_safe(column.value(one)) for column in shown)])
        if text.tell() > 1 << 16:
            yield _taken(text)
    yield _taken(text)


def _safe(value: str | float | None) -> str | float | None:
    return f"'{value}" if isinstance(value, str) and value.startswith(tuple(GONE)) else value


def _taken(text: io.StringIO) -> bytes:
    found = text.getvalue().encode()
    text.seek(0)
    text.truncate()
    return found


def _json(search: Search, query: RolloutQuery, shown: Sequence[TableColumn]) -> Iterator[bytes]:
    before = b"[\n"
    for one in search.every(query):
        yield before + orjson.dumps({**_keys(one), **{column.name: column.value(one) for column in shown}})
        before = b",\n"
    yield b"[]\n" if before == b"[\n" else b"\n]\n"
