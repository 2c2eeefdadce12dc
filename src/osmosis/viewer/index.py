"""A searchable table of a run's rollouts: an SQLite file in a cache, which one process fills and others read."""

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

import orjson

from osmosis.base import installation
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import lock_if_free, locked
from osmosis.records.run.annotations import Annotation
from osmosis.records.run.rollout import RolloutStatus, get_reasoning, list_functions
from osmosis.records.run.rows import Row

EXCERPT = 400
_UNSPACED_SCRIPTS = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
"""Scripts without spaces between words: each character counts as a word."""
Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class IndexedRollout:
    columns: dict[str, Value]
    scores: dict[str, float | None]
    tools: set[str]
    words: str


def index_rollout(raw: bytes | str, position: int, threshold: float) -> IndexedRollout | None:
    try:
        return _index(orjson.loads(raw), position, threshold)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _index(rollout: JsonObject, position: int, threshold: float) -> IndexedRollout:
    messages = [message for message in rollout.get("messages") or () if isinstance(message, dict)]
    scores = rollout.get("scores") or {}
    values = {name: score.get("value") for name, score in scores.items()}
    reward = next(iter(values.values()), None) if rollout["status"] == RolloutStatus.SUCCESS.value else None
    failures = [rollout.get("failure"), *(score.get("failure") for score in scores.values())]
    failure: JsonObject = next((failure for failure in failures if failure), {})
    usage = rollout.get("usage") or {}
    calls = [function for message in messages for function in list_functions(message)]
    prompt = next((message_text(message) for message in messages if message.get("role") == "user"), "")
    answers = (message_text(message) for message in reversed(messages) if message.get("role") == "assistant")
    columns: dict[str, Value] = {
        "step": rollout.get("step", 0),
        "row_index": rollout["row_index"],
        "attempt": rollout["attempt"],
        "place": position,
        "outcome": outcome(rollout["status"], reward, threshold),
        "reward": reward,
        "tokens": usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0),
        "cost": usage.get("cost_usd"),
        "duration": rollout.get("duration_ms", 0.0),
        "turns": sum(message.get("role") == "assistant" for message in messages),
        "tools": rollout.get("num_tool_calls", 0),
        "started": _timestamp(rollout.get("started_at")),
        "category": failure.get("category"),
        "model": rollout.get("model"),
        "prompt": prompt[:EXCERPT],
        "answer": next((answer for answer in answers if answer), "")[-EXCERPT:],
        "failure": str(failure.get("message") or "")[:EXCERPT],
        "finish": rollout.get("finish_reason"),
        "issue": rollout.get("answer_issue"),
        "row_hash": (rollout.get("hashes") or {}).get("row"),
        "row_key": rollout.get("row_key"),
        "extra": _extra(rollout, scores),
    }
    tools = {str(call["name"]) for call in calls if call.get("name")}
    words = "\n".join(
        [
            *(part for message in messages for part in (message_text(message), get_reasoning(message))),
            *(f"{call.get('name')} {call.get('arguments')}" for call in calls),
            f"{failure.get('category') or ''} {failure.get('message') or ''}",
            *(str(score.get("reason") or "") for score in scores.values()),
        ]
    )
    return IndexedRollout(columns, values, tools, separate_characters(words))


def _timestamp(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def outcome(status: str, reward: float | None, threshold: float) -> str:
    if status == RolloutStatus.SKIPPED.value:
        return "skipped"
    if reward is None:
        return "failed"
    return "passed" if reward >= threshold else "not-passed"


def message_text(message: JsonObject) -> str:
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") if isinstance(part, dict) else part for part in content)
        return "\n".join(part for part in parts if isinstance(part, str))
    return "" if content is None else str(content)


def _extra(rollout: JsonObject, scores: JsonObject) -> str | None:
    values = {
        "metric": rollout.get("metrics"),
        "meta": {name: score["metadata"] for name, score in scores.items() if score.get("metadata")},
        "part": {name: score["parts"] for name, score in scores.items() if score.get("parts")},
        "reason": {name: score["reason"][:EXCERPT] for name, score in scores.items() if score.get("reason")},
    }
    values = {kind: value for kind, value in values.items() if value}
    return orjson.dumps(values).decode() if values else None


def separate_characters(text: str) -> str:
    return text if text.isascii() else _UNSPACED_SCRIPTS.sub(r" \1 ", text)


VERSION = 7
MAX_FILES = 200  # Indexes in a folder; beyond, the least recently used ones are removed
MAX_UNUSED_S = 3600.0  # Seconds for which an index of an earlier epoch stays, for processes that still read it
BATCH = 500
NO_LABEL = "(no label)"
FeedItem = tuple[int, int, bytes | str]  # A rollout's place, the place after it, and its JSON


class RolloutFeed(Protocol):
    @property
    def epoch(self) -> str: ...
    def since(self, position: int) -> Iterator[FeedItem]: ...
    def extent(self) -> int: ...

    def dataset_rows(self) -> Iterable[Row]:
        """Return the rows that the run used, as the dataset has them now; none when it is gone."""


@dataclass(frozen=True, slots=True)
class IndexProgress:
    done: int
    total: int

    @property
    def complete(self) -> bool:
        return self.done >= self.total

    @property
    def share(self) -> float:
        return 100.0 * self.done / self.total if self.total else 100.0


class RolloutIndex:
    def __init__(self, path: Path | None, *, epoch: str, threshold: float) -> None:
        self.threshold = threshold
        key = sha256(f"{VERSION}|{threshold!r}|{epoch}".encode()).hexdigest()[:12]
        self.path = path and path.with_name(f"{path.stem}~{key}{path.suffix}")
        self.connection = _create(":memory:") if self.path is None else _open(self.path)

    @property
    def next(self) -> int:
        return int(self.connection.execute("SELECT next FROM state").fetchone()[0])

    @property
    def has_rows(self) -> bool:
        return bool(self.connection.execute("SELECT has_rows FROM state").fetchone()[0])

    def fill(self, feed: RolloutFeed) -> None:
        items = feed.since(self.next)
        while batch := list(islice(items, BATCH)):
            self.add(batch)
        if not self.has_rows:
            # Last: the table is shown without them, and reading a dataset may take a process of its own.
            rows = feed.dataset_rows()
            values = ((row.index, row.content_hash, orjson.dumps(row.data, default=str).decode()) for row in rows)
            with self.connection as connection:
                connection.executemany("INSERT OR IGNORE INTO rows VALUES (?, ?, ?)", values)
                connection.execute("UPDATE state SET has_rows = 1")

    def add(self, items: list[FeedItem]) -> None:
        with self.connection as connection:
            for position, _, raw in items:
                rollout = index_rollout(raw, position, self.threshold)
                if rollout is not None:
                    _insert(connection, rollout)
            connection.execute("UPDATE state SET next = ?", (items[-1][1],))

    def set_labels(self, version: int, load: Callable[[], Iterable[Annotation]]) -> None:
        """Store people's labels, to filter by; does nothing when `version` is the stored one."""
        if self.connection.execute("SELECT labels_version FROM state").fetchone()[0] == version:
            return
        labels = [(*annotation.place, annotation.label or NO_LABEL) for annotation in load()]
        with self.connection as connection:
            connection.execute("DELETE FROM labels")
            connection.executemany("INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", labels)
            connection.execute("UPDATE state SET labels_version = ?", (version,))

    def close(self) -> None:
        self.connection.close()


def _insert(connection: sqlite3.Connection, rollout: IndexedRollout) -> None:
    columns = rollout.columns
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    cursor = connection.execute(f"INSERT OR IGNORE INTO rollouts({names}) VALUES ({marks})", columns)
    if not cursor.rowcount:
        return
    id_ = cursor.lastrowid
    scores = [(name, id_, value) for name, value in rollout.scores.items()]
    connection.executemany("INSERT INTO scores VALUES (?, ?, ?)", scores)
    connection.executemany("INSERT INTO tools VALUES (?, ?)", [(name, id_) for name in rollout.tools])
    connection.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (id_, rollout.words))
    kinds = [("score", name) for name in rollout.scores] + [("tool", name) for name in rollout.tools]
    kinds += [(kind, str(columns[kind])) for kind in ("outcome", "attempt", "category") if columns[kind] is not None]
    connection.executemany(
        "INSERT INTO names(kind, name, amount) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET amount = amount + 1", kinds
    )


class IndexFillers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Path, threading.Thread] = {}

    def open(
        self, path: Path, feed: RolloutFeed, threshold: float, *, wait_s: float
    ) -> tuple[RolloutIndex, IndexProgress]:
        """Open an index after at most `wait_s` of filling it; the filling goes on in a thread."""
        index = RolloutIndex(path, epoch=feed.epoch, threshold=threshold)
        assert index.path is not None
        total = feed.extent()
        if index.next < total or not index.has_rows:
            self._start(index.path, lambda: _fill_file(path, feed, threshold)).join(wait_s)
        return index, IndexProgress(index.next + index.has_rows, total + 1)

    def _start(self, path: Path, fill: Callable[[], None]) -> threading.Thread:
        with self._lock:
            thread = self._threads.get(path)
            if thread is None or not thread.is_alive():
                thread = self._threads[path] = threading.Thread(target=fill, daemon=True)
                thread.start()
            return thread


def _fill_file(path: Path, feed: RolloutFeed, threshold: float) -> None:
    with closing(RolloutIndex(path, epoch=feed.epoch, threshold=threshold)) as index:
        assert index.path is not None
        with lock_if_free(index.path.with_suffix(".lock")) as free:
            if free:  # else another process fills it
                index.fill(feed)


def _open(path: Path) -> sqlite3.Connection:
    if not _is_index(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_suffix(".creating")):
            if not _is_index(path):  # nor did another process create it meanwhile
                for suffix in ("-wal", "-shm"):
                    path.with_name(path.name + suffix).unlink(missing_ok=True)
                draft = path.with_suffix(".new")
                _create(str(draft)).close()
                draft.chmod(0o600)
                draft.replace(path)
                _prune(path)
    return _connect(str(path))


def _create(name: str) -> sqlite3.Connection:
    connection = _connect(name)
    connection.executescript(Path(__file__).with_suffix(".sql").read_text())
    return connection


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=30, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # a torn index is built again
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _is_index(path: Path) -> bool:
    """Return whether the file is a complete index; a busy database or a failing disk raises."""
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=30)) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone())
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return False


def _prune(new: Path) -> None:
    paths = sorted(new.parent.glob("*.db"), key=installation.last_used, reverse=True)
    name, oldest = new.stem.rpartition("~")[0], time.time() - MAX_UNUSED_S
    for number, path in enumerate(paths):
        is_earlier = path.stem.rpartition("~")[0] == name
        if path != new and (number >= MAX_FILES or (is_earlier and installation.last_used(path) < oldest)):
            _remove(path)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    for suffix in (".lock", ".creating"):
        path.with_suffix(suffix).unlink(missing_ok=True)


def remove_index(path: Path) -> None:
    for index in (path, *path.parent.glob(f"{path.stem}~*{path.suffix}")):
        _remove(index)
