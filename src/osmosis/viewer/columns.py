"""The columns of the rollouts table: what each is called, how a rollout and how a row with several attempts fills it.

A column is chosen by its name in the address: `tokens`, `score:NAME`, `row:COLUMN` of the dataset, `metric:NAME`,
`meta:SCORE.KEY`, `part:SCORE.KEY`, `reason:SCORE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import fmean

import orjson

from osmosis.metrics.formats import count, dollars, duration, number
from osmosis.metrics.formats import score as score_text

from .index.found import RolloutLine

Value = str | float | int | None
CLIP = 140
"""Characters of a text in a cell; all that is stored of it is its title."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    title: str
    value: Callable[[RolloutLine], Value]
    write: Callable[[float], str] | None = None
    """Of a column of numbers."""
    sort: str = ""
    """By what of the query the table is sorted for it; empty: cannot be."""
    added: bool = False
    """Over the attempts at a row: a sum, where others are a mean."""
    help: str = ""

    def text(self, value: Value) -> str:
        if value is None:
            return "–"
        return self.write(value) if self.write and not isinstance(value, str) else str(value)

    def of_row(self, attempts: Sequence[RolloutLine]) -> Value:
        """Of all attempts at a row: the mean or the sum of numbers, the different texts."""
        values = [value for one in attempts if (value := self.value(one)) is not None]
        numbers = [value for value in values if not isinstance(value, str)]
        if numbers:
            return sum(numbers) if self.added else fmean(numbers)
        texts = dict.fromkeys(str(value) for value in values if value)
        return " | ".join(texts) if texts else None


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    title: str = ""
    number: bool = False


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"


def _number(value: float) -> str:
    return number(value)


FIXED: Mapping[str, TableColumn] = {
    column.name: column
    for column in (
        TableColumn("prompt", "Prompt", lambda one: one.prompt, help="The first message of the user."),
        TableColumn("expected", "Expected", lambda one: one.expected, help="ground_truth or label of the dataset."),
        TableColumn("answer", "Answer", lambda one: one.answer, help="The end of the model's last message."),
        TableColumn("failure", "Failure", lambda one: (one.category or "").replace("_", " ") or None),
        TableColumn("turns", "Turns", lambda one: one.turns, _number, "turns"),
        TableColumn("tokens", "Tokens", lambda one: one.tokens, count, "tokens", added=True),
        TableColumn("cost", "Cost", lambda one: one.cost, dollars, "cost", added=True),
        TableColumn("duration", "Duration", lambda one: one.duration_ms, duration, "duration"),
        TableColumn("tools", "Tool calls", lambda one: one.tool_calls, _number, "tools"),
        TableColumn("message", "Failure message", lambda one: one.failure or None),
        TableColumn("label", "Label", lambda one: ", ".join(one.labels) or None, help="Labels and comments by people."),
        TableColumn("finish", "Finish reason", lambda one: one.finish_reason),
        TableColumn("issue", "Answer issue", lambda one: one.answer_issue),
        TableColumn("model", "Model", lambda one: one.model),
        TableColumn("started", "Started", lambda one: _moment(one.started_at), sort="started"),
    )
}
USUAL = ("prompt", "expected", "answer", "score", "failure", "turns", "tokens", "cost", "duration")
"""Shown when nobody chose; `score` stands for every score there is."""


def columns(chosen: Iterable[str], scores: Sequence[str]) -> list[TableColumn]:
    """The columns of these names; the usual ones when there are none."""
    names: list[str] = []
    for name in list(chosen) or USUAL:
        names += [f"score:{one}" for one in scores] if name == "score" else [name]
    return [found for name in dict.fromkeys(names) if (found := column(name, first=scores[:1])) is not None]


def column(name: str, first: Sequence[str] = ()) -> TableColumn | None:
    """One by its name; None when there is no such kind. `first`: the score that is the reward."""
    if name in FIXED:
        return FIXED[name]
    kind, _, rest = name.partition(":")
    if not rest:
        return None
    if kind == "score":
        sort = "reward" if rest in first else name
        return TableColumn(name, short(rest), lambda one: one.scores.get(rest), score_text, sort, help=rest)
    if kind == "row":
        return TableColumn(
            name, rest, lambda one: plain(one.row.get(rest)), _number, help=f"The dataset's column {rest}."
        )
    if kind in ("metric", "reason"):
        return TableColumn(name, name.replace(":", " "), lambda one: plain(_inside(one.extra, kind, rest)), _number)
    if kind in ("meta", "part"):
        score, _, key = rest.rpartition(".")
        return TableColumn(name, key, lambda one: plain(_inside(one.extra, kind, score, key)), _number, help=rest)
    return None


def short(score: str) -> str:
    """`rewards:exact` is `exact`."""
    return score.rpartition(":")[2]


def _inside(found: object, *keys: str) -> object:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def plain(value: object) -> Value:
    """Any JSON as one cell."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return value
    return orjson.dumps(value, default=str).decode()


def cell(shown: TableColumn, value: Value) -> Cell:
    """As a page shows it."""
    text = shown.text(value)
    if isinstance(value, str):
        flat = " ".join(text.split())
        return Cell(flat if len(flat) <= CLIP else flat[: CLIP - 1] + "…", text)
    return Cell(text, number=shown.write is not None)
