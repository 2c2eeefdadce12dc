"""What is asked of an index: a page of rollouts or of rows, how many there are, the one before and after, all of them.

Each question is one statement over the narrow table of figures; texts are read for the lines that are shown alone.
Common words cost no ranking: what is found comes in the order of the table.
"""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import orjson

from osmosis.base.json_types import JsonObject
from osmosis.errors import NotFound
from osmosis.records.history import RowCount
from osmosis.records.rollout import RolloutStatus

from .file import OWN_SCORES, OWN_TOOLS, RolloutIndex
from .found import RolloutLine, StoredOutcome, StoredValue, extra_names, rollout_line
from .query import OUTCOMES, RolloutQuery
from .words import matching

Key = tuple[int, int, int]
"""Row, attempt and step."""
_IN_ORDER = "step, row_index, attempt"
_COUNTS: OrderedDict[tuple[object, ...], int] = OrderedDict()
_PLACES: OrderedDict[tuple[object, ...], list[tuple[int, int]]] = OrderedDict()
"""How many fit a query, and which rows: by index, how far it was filled, and the query. Turning a page finds nothing
anew."""
_KEPT = 40
_FEW = 5_000
"""Up to so many hits are looked up one by one; beyond, the table is walked in its order."""
_FAR = 1e308
_DISAGREE = "slots WHERE passed > 0 AND others > 0"
"""Rows of which some attempts pass and some do not."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The rollouts before and after one, among those that a query wants."""

    before: Key | None = None
    after: Key | None = None
    next_failed: Key | None = None
    """The next one without a score, whatever the query."""


def forget() -> None:
    """What was counted before."""
    _COUNTS.clear()
    _PLACES.clear()


V = TypeVar("V")


def _keep(kept: OrderedDict[tuple[object, ...], V], key: tuple[object, ...], value: V) -> None:
    kept[key] = value
    while len(kept) > _KEPT:
        kept.popitem(last=False)


class Search:
    """Questions to one index."""

    def __init__(self, index: RolloutIndex) -> None:
        self._index = index
        self._db = index.connection
        self._looked_up: str | None = None
        self._found = 0

    def outcomes(self) -> dict[str, int]:
        """How many rollouts have each outcome."""
        counted = {name: amount for _, name, amount in self._names.get("outcome", ())}
        return {name: counted.get(str(number), 0) for number, name in enumerate(OUTCOMES)}

    @cached_property
    def _names(self) -> dict[str, list[tuple[int, str, int]]]:
        found: dict[str, list[tuple[int, str, int]]] = {}
        for kind, number, name, amount in self._db.execute("SELECT * FROM names ORDER BY kind, number"):
            found.setdefault(kind, []).append((number, name, amount))
        return found

    def _number(self, kind: str, name: str) -> int:
        """-1 when it does not occur."""
        return next((number for number, known, _ in self._names.get(kind, ()) if known == name), -1)

    def rewards(self) -> list[float]:
        """Every reward there is, ascending."""
        return sorted(row[0] for row in self._db.execute("SELECT reward FROM rollouts WHERE reward IS NOT NULL"))

    def score_names(self) -> list[str]:
        """The first one is the reward."""
        return [name for _, name, _ in self._names.get("score", ())]

    def tool_names(self) -> list[str]:
        return sorted(name for _, name, _ in self._names.get("tool", ()))

    def categories(self) -> list[str]:
        return sorted(name for _, name, _ in self._names.get("category", ()))

    def columns(self) -> list[str]:
        """The columns of the dataset, as the first row has them."""
        found = self._db.execute("SELECT data FROM rows ORDER BY row_index LIMIT 1").fetchone()
        return list(orjson.loads(found[0])) if found else []

    def extras(self) -> list[str]:
        """What scores and agents kept beside, by the names of columns: `metric:steps`, `meta:reward.reason`."""
        names: dict[str, None] = {}
        for (text,) in self._db.execute("SELECT extra FROM texts WHERE extra IS NOT NULL LIMIT 20"):
            names.update(dict.fromkeys(extra_names(orjson.loads(text))))
        return sorted(names)

    def most_attempts(self) -> int:
        return 1 + max((int(name) for _, name, _ in self._names.get("attempt", ())), default=0)

    def count(self, query: RolloutQuery) -> int:
        """How many rollouts fit."""
        if query.plain:
            return sum(self.outcomes().values())
        if query.by_slots:
            text = f"SELECT coalesce(sum(passed + others), 0) FROM {_DISAGREE}"
            return int(self._db.execute(text).fetchone()[0])
        key = self._key(query, "count")
        if key not in _COUNTS:
            source, values = self._source(query)
            _keep(_COUNTS, key, int(self._db.execute(f"SELECT count(*) {source}", values).fetchone()[0]))
        return _COUNTS[key]

    def count_rows(self, query: RolloutQuery) -> int:
        """How many rows have a rollout that fits."""
        if query.plain:
            return int(self._db.execute("SELECT count(*) FROM slots").fetchone()[0])
        return len(self._places(query))

    def _key(self, query: RolloutQuery, what: str) -> tuple[object, ...]:
        path = self._index.path
        return (str(path) if path else id(self._index), self._index.next, self._index.labelled, query, what)

    def rollouts(self, query: RolloutQuery, *, limit: int, offset: int = 0) -> list[RolloutLine]:
        """A page of those that fit, in the order of the query."""
        source, values = self._source(query)
        text = f"SELECT r.id {source} ORDER BY {self._order(query)} LIMIT ? OFFSET ?"
        return self._lines([row[0] for row in self._db.execute(text, [*values, limit, offset])])

    def rows(self, query: RolloutQuery, *, limit: int, offset: int = 0) -> list[list[RolloutLine]]:
        """A page of rows of which an attempt fits, each with all its attempts; ordered by the first that fits."""
        if query.plain and query.sort == "row":
            turn = " DESC" if query.down else ""
            text = f"SELECT step, row_index FROM slots ORDER BY step{turn}, row_index{turn} LIMIT ? OFFSET ?"
            places = [(row[0], row[1]) for row in self._db.execute(text, (limit, offset))]
        else:
            places = self._places(query)[offset : offset + limit]
        if not places:
            return []
        every = "SELECT id FROM rollouts WHERE step = ? AND row_index = ? ORDER BY attempt LIMIT 100"
        ids = [row[0] for place in places for row in self._db.execute(every, place)]
        fitting = set(ids) if query.plain else self._among(ids, query)
        found: dict[tuple[int, int], list[RolloutLine]] = {place: [] for place in places}
        for line in self._lines(ids, fitting):
            found[line.step, line.row_index].append(line)
        return list(found.values())

    def _places(self, query: RolloutQuery) -> list[tuple[int, int]]:
        """Step and index of every row that fits, in the order of the query: found once, for all pages."""
        key = self._key(query, "places")
        if key not in _PLACES:
            source, values = (f"FROM {_DISAGREE}", []) if query.by_slots else self._source(query)
            turn = " DESC" if query.sort == "row" and query.down else ""
            first = "" if query.sort == "row" else f"min({self._sort(query)}), "
            order = f"{first}step{turn}, row_index{turn}"
            text = f"SELECT step, row_index {source} GROUP BY step, row_index ORDER BY {order}"
            _keep(_PLACES, key, [(row[0], row[1]) for row in self._db.execute(text, values)])
        return _PLACES[key]

    def _among(self, ids: Sequence[int], query: RolloutQuery) -> set[int]:
        where, values = self._where(replace(query, agree=""))  # they are of rows that do
        marks = ", ".join("?" * len(ids))
        text = f"SELECT r.id FROM rollouts r WHERE r.id IN ({marks}) AND {where}"
        return {row[0] for row in self._db.execute(text, [*ids, *values])}

    def counted(self) -> Iterator[StoredOutcome]:
        """Every rollout as far as a comparison needs it, in the order in which they were stored."""
        names, more = self.score_names(), self._more_scores()
        own = ", ".join(f"s{number}" for number in range(OWN_SCORES))
        text = (
            f"SELECT r.id, r.step, r.row_index, r.attempt, r.outcome, t.row_hash, t.row_key, {own} "
            "FROM rollouts r JOIN texts t ON t.id = r.id ORDER BY r.id"
        )
        for id_, step, row_index, attempt, outcome, row_hash, row_key, *values in self._db.execute(text):
            found = {name: StoredValue(value) for name, value in zip(names, values, strict=False)}
            found.update((names[number], StoredValue(value)) for number, value in more.get(id_, ()))
            status = RolloutStatus.SKIPPED if OUTCOMES[outcome] == "skipped" else RolloutStatus.SUCCESS
            hashes = {"row": row_hash} if row_hash else {}
            yield StoredOutcome(row_index, attempt, step, row_key, status, found, hashes)

    def _more_scores(self) -> dict[int, list[tuple[int, float | None]]]:
        found: dict[int, list[tuple[int, float | None]]] = {}
        for number, id_, value in self._db.execute("SELECT number, rollout, value FROM more_scores"):
            found.setdefault(id_, []).append((number, value))
        return found

    def every(self, query: RolloutQuery) -> Iterator[RolloutLine]:
        """All that fit, a page at a time."""
        step, at = 1000, 0
        while found := self.rollouts(query, limit=step, offset=at):
            yield from found
            at += step

    def attempts(self, row_index: int, step: int) -> list[RolloutLine]:
        """Those at the same row in the same step, in order."""
        text = "SELECT id FROM rollouts WHERE step = ? AND row_index = ? ORDER BY attempt LIMIT 100"
        return self._lines([row[0] for row in self._db.execute(text, (step, row_index))])

    def row_count(self, key: str) -> RowCount | None:
        """How the attempts at a row ended: by its key, or by its place where it has none."""
        text = (
            "SELECT r.row_index, r.outcome, r.reward FROM texts t JOIN rollouts r ON r.id = t.id "
            "WHERE t.row_key = ? OR (t.row_key IS NULL AND t.row_hash = ?) ORDER BY r.step, r.attempt"
        )
        found = self._db.execute(text, (key, key)).fetchall()
        if not found:
            return None
        passed, missed = (sum(OUTCOMES[row[1]] == name for row in found) for name in ("passed", "not-passed"))
        rewards = [row[2] for row in found if row[2] is not None]
        return RowCount(
            row_index=found[0][0],
            passed=passed,
            missed=missed,
            unscored=len(found) - passed - missed,
            mean=sum(rewards) / len(rewards) if rewards else None,
        )

    def place(self, row_index: int, attempt: int, step: int) -> int:
        """Where the feed has a rollout. NotFound when it is not (yet) there."""
        found = self._at(row_index, attempt, step)
        if found is None:
            raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")
        return int(found["place"])

    def dataset_row(self, row_index: int, row_hash: str | None) -> JsonObject:
        """The row as the rollout saw it; empty when the dataset is gone or the row was edited since."""
        found = self._db.execute("SELECT hash, data FROM rows WHERE row_index = ?", (row_index,)).fetchone()
        if found is None or (row_hash is not None and found["hash"] != row_hash):
            return {}
        data: JsonObject = orjson.loads(found["data"])
        return data

    def neighbours(self, row_index: int, attempt: int, step: int, query: RolloutQuery) -> Neighbours:
        """Beside a rollout, in the order of the query, whether it fits itself or not."""
        here = self._at(row_index, attempt, step)
        if here is None:
            return Neighbours()
        failed = RolloutQuery(outcome="failed")
        return Neighbours(
            self._beside(here, query, after=False),
            self._beside(here, query, after=True),
            self._beside(here, failed, after=True),
        )

    def _at(self, row_index: int, attempt: int, step: int) -> sqlite3.Row | None:
        text = "SELECT * FROM rollouts WHERE step = ? AND row_index = ? AND attempt = ?"
        found: sqlite3.Row | None = self._db.execute(text, (step, row_index, attempt)).fetchone()
        return found

    def _beside(self, here: sqlite3.Row, query: RolloutQuery, *, after: bool) -> Key | None:
        source, values = self._source(query)
        at: list[object] = [here["step"], here["row_index"], here["attempt"]]
        keys = _IN_ORDER.split(", ")
        if query.sort != "row":
            sort = self._sort(query)
            at.insert(0, self._db.execute(f"SELECT {sort} FROM rollouts r WHERE id = ?", (here["id"],)).fetchone()[0])
            keys.insert(0, sort)
        forward = after != (query.down and query.sort == "row")
        marks = ", ".join("?" * len(at))
        beside = f"({', '.join(keys)}) {'>' if forward else '<'} ({marks})"
        order = ", ".join(f"{key}{'' if forward else ' DESC'}" for key in keys)
        text = f"SELECT row_index, attempt, step {source} AND {beside} ORDER BY {order} LIMIT 1"
        found = self._db.execute(text, [*values, *at]).fetchone()
        return (found[0], found[1], found[2]) if found else None

    def _order(self, query: RolloutQuery) -> str:
        if query.sort != "row":
            return f"{self._sort(query)}, {_IN_ORDER}"
        return ", ".join(f"{key} DESC" for key in _IN_ORDER.split(", ")) if query.down else _IN_ORDER

    def _sort(self, query: RolloutQuery) -> str:
        """A number by which less comes first; what has none comes last."""
        if query.sort == "unsure":
            what = f"abs(r.reward - {self._index.threshold!r})"
        elif query.sort.startswith("score:"):
            what = self._value(query.sort.partition(":")[2])
        else:
            what = f"r.{query.sort}"
        return f"ifnull({'-' if query.down else ''}{what}, {_FAR!r})"

    def _value(self, score: str) -> str:
        """A score as a column of a rollout."""
        number = self._number("score", score)
        if 0 <= number < OWN_SCORES:
            return f"r.s{number}"
        return f"(SELECT value FROM more_scores WHERE number = {number} AND rollout = r.id)"

    def _source(self, query: RolloutQuery) -> tuple[str, list[object]]:
        """`FROM ... WHERE ...` of the rollouts that fit; what words were found in is looked up once."""
        where, values = self._where(query)
        if query.text and 0 < self._hits(query.text) <= _FEW:
            return f"FROM hits h CROSS JOIN rollouts r ON r.id = h.id WHERE {where}", values
        return f"FROM rollouts r WHERE {where}", values

    def _where(self, query: RolloutQuery) -> tuple[str, list[object]]:
        parts = [part for part in self._conditions(query) if part is not None]
        return " AND ".join(text for text, _ in parts) or "1", [value for _, values in parts for value in values]

    def _hits(self, text: str) -> int:
        """How many rollouts hold these words; their ids are in the temporary table `hits`."""
        if self._looked_up != text:
            self._db.execute("CREATE TEMP TABLE IF NOT EXISTS hits(id INTEGER PRIMARY KEY)")
            self._db.execute("DELETE FROM temp.hits")
            match = matching(text)
            found = "INSERT INTO temp.hits SELECT rowid FROM words WHERE words MATCH ?"
            self._found = self._db.execute(found, (match,)).rowcount if match else 0
            self._db.commit()
            self._looked_up = text
        return self._found

    def _conditions(self, query: RolloutQuery) -> Iterator[Condition | None]:
        if query.outcome:
            yield "outcome = ?", [OUTCOMES.index(query.outcome)]
        for kind, name in (("category", query.category), ("model", query.model)):
            if name:
                yield f"{kind} = ?", [self._number(kind, name)]
        for column, number in (("row_index", query.row), ("step", query.step)):
            if number is not None:
                yield f"{column} = ?", [number]
        if query.tool:
            yield self._with_tool(self._number("tool", query.tool))
        if query.text:
            hits = self._hits(query.text)
            if hits < sum(self.outcomes().values()):
                yield ("r.id IN (SELECT id FROM hits)" if hits else "0"), []
        if query.low is not None or query.high is not None:
            low, high = query.low if query.low is not None else -_FAR, query.high if query.high is not None else _FAR
            yield f"{self._value(query.score) if query.score else 'reward'} BETWEEN ? AND ?", [low, high]
        if query.agree:
            yield f"(r.step, r.row_index) IN (SELECT step, row_index FROM {_DISAGREE})", []
        yield _labelled(query.label)

    def _with_tool(self, number: int) -> Condition:
        if number < 0:
            return "0", []
        if number < OWN_TOOLS:
            return "toolset & ?", [1 << number]
        return "EXISTS (SELECT 1 FROM more_tools WHERE number = ? AND rollout = r.id)", [number]

    def _lines(self, ids: Sequence[int], fitting: set[int] | None = None) -> list[RolloutLine]:
        """In the order of the ids."""
        if not ids:
            return []
        marks = ", ".join("?" * len(ids))
        scores = self._scores(ids, marks)
        text = (
            "SELECT r.*, t.*, r.id AS rollout, CASE WHEN t.row_hash IS NULL OR w.hash = t.row_hash THEN w.data END AS "
            "data FROM rollouts r JOIN texts t ON t.id = r.id LEFT JOIN rows w ON w.row_index = r.row_index "
            f"WHERE r.id IN ({marks})"
        )
        labels = self._labels(ids, marks)
        names = {
            kind: {number: name for number, name, _ in self._names.get(kind, ())} for kind in ("category", "model")
        }
        found = {
            row["rollout"]: rollout_line(
                row,
                scores[row["rollout"]],
                names,
                labels.get(row["rollout"], ()),
                fitting is None or row["rollout"] in fitting,
            )
            for row in self._db.execute(text, ids)
        }
        return [found[id_] for id_ in ids if id_ in found]

    def _labels(self, ids: Sequence[int], marks: str) -> dict[int, list[str]]:
        text = (
            "SELECT r.id, l.label FROM rollouts r JOIN labels l ON (l.step, l.row_index, l.attempt) = "
            f"(r.step, r.row_index, r.attempt) WHERE r.id IN ({marks})"
        )
        found: dict[int, list[str]] = {}
        for id_, label in self._db.execute(text, ids):
            found.setdefault(id_, []).append(label)
        return found

    def labels(self) -> list[str]:
        """The labels that occur."""
        return [row[0] for row in self._db.execute("SELECT DISTINCT label FROM labels ORDER BY label")]

    def _scores(self, ids: Sequence[int], marks: str) -> dict[int, dict[str, float | None]]:
        """By rollout: its scores by name."""
        names = self.score_names()
        own = ", ".join(f"s{number}" for number in range(OWN_SCORES))
        found: dict[int, dict[str, float | None]] = {}
        for id_, *values in self._db.execute(f"SELECT id, {own} FROM rollouts WHERE id IN ({marks})", ids):
            found[id_] = dict(zip(names, values, strict=False))
        if len(names) > OWN_SCORES:
            more = f"SELECT rollout, number, value FROM more_scores WHERE rollout IN ({marks})"
            for id_, number, value in self._db.execute(more, ids):
                found[id_][names[number]] = value
        return found


Condition = tuple[str, list[object]]


def _labelled(label: str) -> Condition | None:
    any_of = "SELECT 1 FROM labels l WHERE (l.step, l.row_index, l.attempt) = (r.step, r.row_index, r.attempt)"
    if not label:
        return None
    if label in ("*", "-"):
        return f"{'NOT ' if label == '-' else ''}EXISTS ({any_of})", []
    return f"EXISTS ({any_of} AND l.label = ?)", [label]
