import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

import orjson

from osmosis.base.jsonable import JsonObject
from osmosis.errors import NotFound
from osmosis.records.run.history import RowCount
from osmosis.records.run.rollout import Rollout, RolloutStatus, Score
from osmosis.viewer.index import RolloutIndex, separate_characters
from osmosis.viewer.page import QueryParams

OUTCOMES = ("passed", "not-passed", "failed", "skipped")
SORTS = ("row", "reward", "tokens", "cost", "duration", "turns", "tools", "started", "unsure")
"""Beside `score:NAME`; `unsure` puts scores near the pass threshold first."""
FILTERS = (
    "outcome", "category", "q", "tool", "score", "low", "high", "row", "step", "model", "label", "agree", "sort", "dir",
)  # fmt: skip
_SORTED_DOWN = ("tokens", "cost", "duration", "turns", "tools")
_TERM = re.compile(r'(-?)"([^"]+)"|(-?)(\S+)')
_MAX_TERMS = 20


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    outcome: str = ""
    category: str = ""
    text: str = ""  # Words in the conversation; `"a phrase"`, `begin*`, `-without`
    tool: str = ""
    score: str = ""  # The score that `low` and `high` are about; the first one when empty
    low: float | None = None
    high: float | None = None
    row: int | None = None
    step: int | None = None
    model: str = ""
    label: str = ""  # A person's label; `*` is any, `-` is none
    agree: Literal["", "no"] = ""  # `no`: only rows where some attempts pass and some do not
    sort: str = "row"
    down: bool = False

    @property
    def plain(self) -> bool:
        return replace(self, score="", sort="row", down=False) == RolloutQuery()


def parse_query(params: QueryParams) -> RolloutQuery:
    sort = params.text("sort", "row")
    if sort not in SORTS and not sort.startswith("score:"):
        sort = "row"
    direction = params.choice("dir", ("up", "down"))
    return RolloutQuery(
        outcome=params.choice("outcome", OUTCOMES),
        category=params.text("category"),
        text=params.text("q"),
        tool=params.text("tool"),
        score=params.text("score"),
        low=params.real("low"),
        high=params.real("high"),
        row=params.integer("row"),
        step=params.integer("step"),
        model=params.text("model"),
        label=params.text("label"),
        agree="no" if params.text("agree") == "no" else "",
        sort=sort,
        down=direction == "down" if direction else sort in _SORTED_DOWN,
    )


def to_fts5(text: str) -> str:
    """Translate a search into SQLite's FTS5 syntax, with every operator quoted; empty when it contains no word."""
    included: list[str] = []
    excluded: list[str] = []
    for term in list(_TERM.finditer(separate_characters(text) if '"' in text else text))[:_MAX_TERMS]:
        minus, words = term[1] or term[3] or "", term[2] or term[4]
        is_prefix = term[4] is not None and words.endswith("*")
        words = " ".join(re.findall(r"\w+", separate_characters(words)))
        if words:
            (excluded if minus else included).append(f'"{words}"' + ("*" if is_prefix else ""))
    if not included:
        return ""
    return " AND ".join(included) + "".join(f" NOT {term}" for term in excluded)


RolloutKey = tuple[int, int, int]
_MAX_ATTEMPTS = 100
_INFINITY = 1e308
_ORDER = ("step", "row_index", "attempt")
_LINES = (
    "SELECT id, row_index, attempt, step, outcome, reward, tokens, cost, duration AS duration_ms, turns, "
    "tools AS tool_calls, started AS started_at, category, model, prompt, answer, failure, finish AS finish_reason, "
    "issue AS answer_issue, extra, (SELECT data FROM rows w WHERE w.row_index = r.row_index "
    "AND (r.row_hash IS NULL OR w.hash = r.row_hash)) AS row FROM rollouts r"
)
_DISAGREE = (
    "SELECT step, row_index FROM rollouts GROUP BY step, row_index "
    "HAVING sum(outcome = 'passed') BETWEEN 1 AND count(*) - 1"
)


@dataclass(frozen=True, slots=True)
class RolloutLine:
    row_index: int
    attempt: int
    step: int
    outcome: str
    reward: float | None
    tokens: int | None = None
    cost: float | None = None
    duration_ms: float | None = None
    turns: int | None = None
    tool_calls: int | None = None
    started_at: float | None = None
    category: str | None = None
    model: str | None = None
    prompt: str = ""
    answer: str = ""
    failure: str = ""
    finish_reason: str | None = None
    answer_issue: str | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    row: Mapping[str, object] = field(default_factory=dict)
    """The row of the dataset; empty when it is gone or was edited since."""
    extra: Mapping[str, object] = field(default_factory=dict)
    labels: Sequence[str] = ()
    fits: bool = True  # True when the query matches it, where all attempts at a row are shown

    @property
    def key(self) -> RolloutKey:
        return self.row_index, self.attempt, self.step

    @property
    def expected(self) -> str:
        return expected_answer(self.row)


@dataclass(frozen=True, slots=True)
class PartMean:
    score: str
    part: str
    mean: float | None
    rollouts: int


@dataclass(frozen=True, slots=True)
class Neighbours:
    before: RolloutKey | None = None
    after: RolloutKey | None = None
    next_failed: RolloutKey | None = None


def expected_answer(row: Mapping[str, object]) -> str:
    value = row.get("ground_truth", row.get("label"))
    return "" if value is None else value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


class Search:
    def __init__(self, index: RolloutIndex) -> None:
        self._db = index.connection
        self._threshold = index.threshold

    def outcomes(self) -> dict[str, int]:
        amounts = dict(self._db.execute("SELECT name, amount FROM names WHERE kind = 'outcome'").fetchall())
        return {name: amounts.get(name, 0) for name in OUTCOMES}

    def _names(self, kind: str) -> list[str]:
        return self._column("SELECT name FROM names WHERE kind = ? ORDER BY id", kind)

    def score_names(self) -> list[str]:
        return self._names("score")

    def tool_names(self) -> list[str]:
        return sorted(self._names("tool"))

    def categories(self) -> list[str]:
        return sorted(self._names("category"))

    def most_attempts(self) -> int:
        return 1 + max(map(int, self._names("attempt")), default=0)

    def labels(self) -> list[str]:
        return self._column("SELECT DISTINCT label FROM labels ORDER BY label")

    def columns(self) -> list[str]:
        row = self._db.execute("SELECT data FROM rows ORDER BY row_index LIMIT 1").fetchone()
        return list(orjson.loads(row[0])) if row else []

    def extras(self) -> list[str]:
        texts = self._column("SELECT extra FROM rollouts WHERE extra IS NOT NULL LIMIT 20")
        return sorted({name for text in texts for name in _extra_names(orjson.loads(text))})

    def rewards(self) -> list[float]:
        return self._column("SELECT reward FROM rollouts WHERE reward IS NOT NULL ORDER BY reward")

    def part_means(self) -> list[PartMean]:
        text = (
            "SELECT s.key AS score, p.key AS part, avg(p.value) AS mean, count(p.value) AS rollouts "
            "FROM rollouts r, json_each(r.extra, '$.part') s, json_each(s.value) p "
            "WHERE r.extra IS NOT NULL AND r.step = 0 GROUP BY s.key, p.key ORDER BY min(r.id), min(p.id)"
        )
        return [PartMean(*line) for line in self._db.execute(text)]

    def count(self, query: RolloutQuery) -> int:
        return self._count("SELECT count(*) FROM rollouts r WHERE {}", query)

    def count_rows(self, query: RolloutQuery) -> int:
        return self._count("SELECT count(*) FROM (SELECT 1 FROM rollouts r WHERE {} GROUP BY step, row_index)", query)

    def _count(self, text: str, query: RolloutQuery) -> int:
        where, values = _where(query)
        return int(self._db.execute(text.format(where), values).fetchone()[0])

    def rollouts(self, query: RolloutQuery, *, limit: int, offset: int = 0) -> list[RolloutLine]:
        where, values = _where(query)
        turn = " DESC" if query.sort == "row" and query.down else ""
        keys = [] if query.sort == "row" else [self._sort_key(query)]
        order = ", ".join([*keys, *(f"{key}{turn}" for key in _ORDER)])
        text = f"SELECT id FROM rollouts r WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        return self._lines(self._column(text, *values, limit, offset))

    def rows(self, query: RolloutQuery, *, limit: int, offset: int = 0) -> list[list[RolloutLine]]:
        where, values = _where(query)
        turn = " DESC" if query.sort == "row" and query.down else ""
        first = "" if query.sort == "row" else f"min({self._sort_key(query)}), "
        text = (
            f"SELECT step, row_index FROM rollouts r WHERE {where} GROUP BY step, row_index "
            f"ORDER BY {first}step{turn}, row_index{turn} LIMIT ? OFFSET ?"
        )
        places = [tuple(key) for key in self._db.execute(text, [*values, limit, offset])]
        ids = [id_ for step, row_index in places for id_ in self._attempt_ids(row_index, step)]
        where, values = _where(replace(query, agree=""))  # they are of rows that disagree
        marks = ", ".join("?" * len(ids))
        matching = set(self._column(f"SELECT id FROM rollouts r WHERE id IN ({marks}) AND {where}", *ids, *values))
        lines: dict[tuple[int, ...], list[RolloutLine]] = {key: [] for key in places}
        for line in self._lines(ids, matching):
            lines[line.step, line.row_index].append(line)
        return list(lines.values())

    def iterate(self, query: RolloutQuery) -> Iterator[RolloutLine]:
        limit, offset = 1000, 0
        while lines := self.rollouts(query, limit=limit, offset=offset):
            yield from lines
            offset += limit

    def attempts(self, row_index: int, step: int) -> list[RolloutLine]:
        return self._lines(self._attempt_ids(row_index, step))

    def _attempt_ids(self, row_index: int, step: int) -> list[int]:
        text = f"SELECT id FROM rollouts WHERE step = ? AND row_index = ? ORDER BY attempt LIMIT {_MAX_ATTEMPTS}"
        return self._column(text, step, row_index)

    def steps(self, row_index: int) -> list[int]:
        return self._column("SELECT DISTINCT step FROM rollouts WHERE row_index = ? ORDER BY step", row_index)

    def place(self, row_index: int, attempt: int, step: int) -> int:
        rollout = self._find(row_index, attempt, step)
        if rollout is None:
            raise NotFound(f"no rollout of row {row_index}, attempt {attempt} in this run")
        return int(rollout["place"])

    def dataset_row(self, row_index: int, row_hash: str | None) -> JsonObject:
        """Return the row as the rollout saw it; empty when the dataset is gone or the row was edited since."""
        row = self._db.execute("SELECT hash, data FROM rows WHERE row_index = ?", (row_index,)).fetchone()
        if row is None or (row_hash is not None and row["hash"] != row_hash):
            return {}
        data: JsonObject = orjson.loads(row["data"])
        return data

    def neighbours(self, row_index: int, attempt: int, step: int, query: RolloutQuery) -> Neighbours:
        rollout = self._find(row_index, attempt, step)
        if rollout is None:
            return Neighbours()
        before, after = (self._beside(rollout, query, after=after) for after in (False, True))
        return Neighbours(before, after, self._beside(rollout, RolloutQuery(outcome="failed"), after=True))

    def _find(self, row_index: int, attempt: int, step: int) -> sqlite3.Row | None:
        text = "SELECT * FROM rollouts WHERE step = ? AND row_index = ? AND attempt = ?"
        rollout: sqlite3.Row | None = self._db.execute(text, (step, row_index, attempt)).fetchone()
        return rollout

    def _beside(self, rollout: sqlite3.Row, query: RolloutQuery, *, after: bool) -> RolloutKey | None:
        where, values = _where(query)
        keys, position = list(_ORDER), [rollout[key] for key in _ORDER]
        if query.sort != "row":
            keys.insert(0, self._sort_key(query))
            position[:0] = self._column(f"SELECT {keys[0]} FROM rollouts r WHERE id = ?", rollout["id"])
        forward = after != (query.down and query.sort == "row")
        marks = ", ".join("?" * len(keys))
        order = ", ".join(f"{key}{'' if forward else ' DESC'}" for key in keys)
        text = (
            f"SELECT row_index, attempt, step FROM rollouts r WHERE {where} "
            f"AND ({', '.join(keys)}) {'>' if forward else '<'} ({marks}) ORDER BY {order} LIMIT 1"
        )
        key = self._db.execute(text, [*values, *position]).fetchone()
        return (key[0], key[1], key[2]) if key else None

    def stored_outcomes(self) -> Iterator[Rollout]:
        rank = {name: number for number, name in enumerate(self.score_names())}
        text = (
            "SELECT r.id, r.step, r.row_index, r.attempt, r.outcome, r.row_hash, r.row_key, s.name, s.value "
            "FROM rollouts r LEFT JOIN scores s ON s.rollout = r.id WHERE r.step = 0 ORDER BY r.id"
        )
        for _, group in groupby(self._db.execute(text), key=lambda line: int(line["id"])):
            lines = list(group)
            _, step, row_index, attempt, outcome, row_hash, row_key, *_ = lines[0]
            values = [(line["name"], Score(line["value"])) for line in lines if line["name"] is not None]
            scores = dict(sorted(values, key=lambda pair: rank[pair[0]]))
            status = RolloutStatus.SKIPPED if outcome == "skipped" else RolloutStatus.SUCCESS
            yield Rollout(
                rollout_id="",
                row_index=row_index,
                attempt=attempt,
                step=step,
                row_key=row_key,
                status=status,
                scores=scores,
                hashes={"row": row_hash} if row_hash else {},
            )

    def row_count(self, key: str) -> RowCount | None:
        text = (
            "SELECT row_index, outcome, reward FROM rollouts "
            "WHERE row_key = ? OR (row_key IS NULL AND row_hash = ?) ORDER BY step, attempt"
        )
        rollouts = self._db.execute(text, (key, key)).fetchall()
        if not rollouts:
            return None
        passed, missed = (sum(line["outcome"] == name for line in rollouts) for name in ("passed", "not-passed"))
        rewards = [line["reward"] for line in rollouts if line["reward"] is not None]
        row, unscored = rollouts[0]["row_index"], len(rollouts) - passed - missed
        mean = sum(rewards) / len(rewards) if rewards else None
        return RowCount(row_index=row, passed=passed, missed=missed, unscored=unscored, mean=mean)

    def _column(self, text: str, *values: object) -> list[Any]:
        return [line[0] for line in self._db.execute(text, values)]

    def _sort_key(self, query: RolloutQuery) -> str:
        """Return an SQL expression: smaller numbers come first, and rollouts without one last."""
        kind, _, name = query.sort.partition(":")
        if kind == "unsure":
            key = f"abs(r.reward - {self._threshold!r})"
        else:
            key = _score_value(name) if kind == "score" else f"r.{kind}"
        return f"ifnull({'-' if query.down else ''}{key}, {_INFINITY!r})"

    def _lines(self, ids: Sequence[int], matching: set[int] | None = None) -> list[RolloutLine]:
        marks = ", ".join("?" * len(ids))
        scores: dict[int, dict[str, float | None]] = {}
        text = (
            f"SELECT s.* FROM scores s JOIN names n ON n.name = s.name WHERE n.kind = 'score' AND rollout IN ({marks})"
        )
        for score in self._db.execute(f"{text} ORDER BY n.id", ids):
            scores.setdefault(score["rollout"], {})[score["name"]] = score["value"]
        labels: dict[int, list[str]] = {}
        text = (
            "SELECT r.id, l.label FROM rollouts r JOIN labels l ON (l.step, l.row_index, l.attempt) = "
            f"(r.step, r.row_index, r.attempt) WHERE r.id IN ({marks})"
        )
        for id_, label in self._db.execute(text, ids):
            labels.setdefault(id_, []).append(label)
        lines = {}
        for line in self._db.execute(f"{_LINES} WHERE id IN ({marks})", ids):
            id_, values = line["id"], dict(line)
            del values["id"]
            for name in ("row", "extra"):
                values[name] = orjson.loads(line[name]) if line[name] else {}
            fits = matching is None or id_ in matching
            lines[id_] = RolloutLine(**values, scores=scores.get(id_, {}), labels=labels.get(id_, ()), fits=fits)
        return [lines[id_] for id_ in ids if id_ in lines]


def _extra_names(extra: Mapping[str, object]) -> Iterator[str]:
    for kind, values in extra.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, dict):
                yield from (f"{kind}:{name}.{key}" for key in value)
            else:
                yield f"{kind}:{name}"


def _score_value(name: str) -> str:
    quoted = name.replace("'", "''").replace("\0", "")
    return f"(SELECT value FROM scores WHERE rollout = r.id AND name = '{quoted}')"


def _where(query: RolloutQuery) -> tuple[str, list[object]]:
    conditions: list[str] = []
    values: list[object] = []

    def add(condition: str, *more: object) -> None:
        conditions.append(condition)
        values.extend(more)

    for column in ("outcome", "category", "model"):
        if value := getattr(query, column):
            add(f"{column} = ?", value)
    for column, number in (("row_index", query.row), ("step", query.step)):
        if number is not None:
            add(f"{column} = ?", number)
    if query.tool:
        add("r.id IN (SELECT rollout FROM tools WHERE name = ?)", query.tool)
    if query.text:
        if words := to_fts5(query.text):
            add("r.id IN (SELECT rowid FROM words WHERE words MATCH ?)", words)
        else:
            add("0")
    if query.low is not None or query.high is not None:
        low = query.low if query.low is not None else -_INFINITY
        high = query.high if query.high is not None else _INFINITY
        add(f"{_score_value(query.score) if query.score else 'reward'} BETWEEN ? AND ?", low, high)
    if query.agree:
        add(f"(r.step, r.row_index) IN ({_DISAGREE})")
    if query.label:
        labels = "SELECT 1 FROM labels l WHERE (l.step, l.row_index, l.attempt) = (r.step, r.row_index, r.attempt)"
        if query.label in ("*", "-"):
            add(f"{'NOT ' if query.label == '-' else ''}EXISTS ({labels})")
        else:
            add(f"EXISTS ({labels} AND l.label = ?)", query.label)
    return " AND ".join(conditions) or "1", values
