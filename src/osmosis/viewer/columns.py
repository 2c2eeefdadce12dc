"""The columns of the rollouts table, by their names in an address. `tokens`, `score:NAME`, `row:COLUMN` of the dataset,
`metric:NAME`, `meta:SCORE.KEY`, `part:SCORE.KEY`, `reason:SCORE`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from statistics import fmean

import orjson

from osmosis.metrics.formats import count, dollars, duration, number, score as format_score
from osmosis.viewer.index.search import RolloutLine

Value = str | float | int | None
MAX_CELL = 140


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    title: str
    value: Callable[[RolloutLine], Value]
    write: Callable[[float], str] | None = None
    sort: str = ""
    """The `sort` of the query that orders the table by it; empty when it cannot be sorted by."""
    added: bool = False
    """True when the attempts at a row are summed instead of averaged."""
    help: str = ""

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


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    title: str = ""
    number: bool = False


def _format_time(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M:%S}"


FIXED: Mapping[str, TableColumn] = {
    column.name: column
    for column in (
        TableColumn("prompt", "Prompt", lambda line: line.prompt, help="The first message of the user."),
        TableColumn("expected", "Expected", lambda line: line.expected, help="ground_truth or label of the dataset."),
        TableColumn("answer", "Answer", lambda line: line.answer, help="The end of the model's last message."),
        TableColumn("failure", "Failure", lambda line: (line.category or "").replace("_", " ") or None),
        TableColumn("turns", "Turns", lambda line: line.turns, number, "turns"),
        TableColumn("tokens", "Tokens", lambda line: line.tokens, count, "tokens", added=True),
        TableColumn("cost", "Cost", lambda line: line.cost, dollars, "cost", added=True),
        TableColumn("duration", "Duration", lambda line: line.duration_ms, duration, "duration"),
        TableColumn("tools", "Tool calls", lambda line: line.tool_calls, number, "tools"),
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


def build_cell(column: TableColumn, value: Value) -> Cell:
    text = column.text(value)
    if isinstance(value, str):
        flat = " ".join(text.split())
        return Cell(flat if len(flat) <= MAX_CELL else flat[: MAX_CELL - 1] + "…", text)
    return Cell(text, number=column.write is not None)
