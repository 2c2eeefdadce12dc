"""The index itself: an SQLite file with a line per rollout, filled as far as the run has come, in pieces.

One process fills it at a time; others read what is there. Another version, a run that was rewritten or is judged by
another threshold has another file. Nothing in it is the only copy of anything.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import orjson

from osmosis.base.locks import lock_if_free
from osmosis.records.annotation import Annotation
from osmosis.records.dataset import Row

from .line import IndexLine, read_line

VERSION = 6
FILES = 200
"""Indexes that are kept in a folder; the one used least recently goes first."""
UNUSED_S = 3600.0
"""An index of an earlier epoch is kept so long: somebody may still read it."""
BATCH = 500
SAID = "(no label)"
"""Stands for a score or a comment without a label."""
OWN_SCORES = 8
"""Scores that have a column of their own; further ones stand in a table."""
OWN_TOOLS = 62
"""Tools that have a bit of their own."""
_SCHEMA = """
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE rollouts(
  step INTEGER NOT NULL, row_index INTEGER NOT NULL, attempt INTEGER NOT NULL, id INTEGER NOT NULL,
  outcome INTEGER NOT NULL, reward REAL, tokens INTEGER, cost REAL, duration REAL, turns INTEGER, tools INTEGER,
  started REAL, category INTEGER, model INTEGER, toolset INTEGER, place INTEGER NOT NULL, SCORES,
  PRIMARY KEY(step, row_index, attempt)) WITHOUT ROWID;
CREATE INDEX by_id ON rollouts(id);
CREATE TABLE slots(
  step INTEGER, row_index INTEGER, passed INTEGER, others INTEGER, PRIMARY KEY(step, row_index)) WITHOUT ROWID;
CREATE TABLE names(kind TEXT, number INTEGER, name TEXT, amount INTEGER, PRIMARY KEY(kind, number)) WITHOUT ROWID;
CREATE TABLE texts(
  id INTEGER PRIMARY KEY, prompt TEXT, answer TEXT, failure TEXT, finish TEXT, issue TEXT, row_hash TEXT,
  row_key TEXT, extra TEXT);
CREATE INDEX by_key ON texts(row_key);
CREATE INDEX by_hash ON texts(row_hash) WHERE row_key IS NULL;
CREATE TABLE more_scores(number INTEGER, rollout INTEGER, value REAL, PRIMARY KEY(number, rollout)) WITHOUT ROWID;
CREATE TABLE more_tools(number INTEGER, rollout INTEGER, PRIMARY KEY(number, rollout)) WITHOUT ROWID;
CREATE TABLE rows(row_index INTEGER PRIMARY KEY, hash TEXT, data TEXT);
CREATE TABLE labels(
  step INTEGER, row_index INTEGER, attempt INTEGER, label TEXT,
  PRIMARY KEY(step, row_index, attempt, label)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(said, content='', tokenize="unicode61 remove_diacritics 2");
"""
_FIGURES = "INSERT OR IGNORE INTO rollouts VALUES (" + ", ".join("?" * (16 + OWN_SCORES)) + ")"
_SLOTS = """INSERT INTO slots VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET passed = passed + excluded.passed, others = others + excluded.others"""
_TEXTS = "INSERT INTO texts VALUES (?" + ", ?" * 8 + ")"


class Feed(Protocol):
    """Where the rollouts of a run come from."""

    @property
    def epoch(self) -> str:
        """Another one: what was read before no longer counts."""

    def since(self, place: int) -> Iterator[tuple[int, int, bytes | str]]:
        """The rollouts behind a place: where each is, the place behind it, its JSON."""

    def extent(self) -> int:
        """The place behind the last one that there is now."""

    def dataset_rows(self) -> Iterable[Row]:
        """The rows that the run used, as the dataset has them now; none when it is gone."""


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
    """An open index. `connection` is for reading; `fill` writes."""

    def __init__(self, path: Path | None, *, epoch: str, threshold: float) -> None:
        """`path` None: in memory. Opened, or made: each epoch has a file of its own beside this name, because a file
        that is put in another's place takes the log from under those who have that one open."""
        self.threshold = threshold
        known = f"{VERSION}|{threshold!r}|{epoch}"
        self.path = path and path.with_name(f"{path.stem}~{_short(known)}{path.suffix}")
        self.connection = self._open()

    def _open(self) -> sqlite3.Connection:
        if self.path is None:
            return self._made(":memory:")
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.path.exists():
            connection = _connect_to_index(self.path)
            if connection is not None:
                return connection
            _take_away(self.path)  # torn, or emptied by who removed it while it was opened
        return self._begun(self.path)

    def _begun(self, path: Path) -> sqlite3.Connection:
        """Whole from the first moment, and made by one of those who want it at once."""
        draft = path.with_name(f"{path.name}.{threading.get_ident()}.{time.monotonic_ns()}")
        self._made(str(draft)).close()
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            draft.replace(path)
        draft.unlink(missing_ok=True)
        _prune(path)
        return _connect(str(path))

    def _made(self, name: str) -> sqlite3.Connection:
        connection = _connect(name)
        scores = ", ".join(f"s{number} REAL" for number in range(OWN_SCORES))
        connection.executescript(_SCHEMA.replace("SCORES", scores))
        _note(connection, next=0, rows=0)
        connection.commit()
        if name != ":memory:":
            Path(name).chmod(0o600)
        return connection

    @property
    def next(self) -> int:
        """The place up to which the feed was read."""
        return int(str(_meta(self.connection, "next")))

    @property
    def labelled(self) -> int:
        """Changes with the labels."""
        return int(str(_meta(self.connection, "labelled") or 0))

    def fill(self, feed: Feed, wait: Callable[[], None] = lambda: None) -> None:
        """Reads what is new; `wait` is called between batches, outside of any transaction."""
        batch: list[tuple[int, int, bytes | str]] = []
        for one in feed.since(self.next):
            batch.append(one)
            if len(batch) >= BATCH:
                self.add(batch)
                batch = []
                wait()
        if batch:
            self.add(batch)
        if not self.has_rows:
            # Last: the table is there without them, and reading a dataset may take a process of its own.
            self._add_rows(feed.dataset_rows())

    @property
    def has_rows(self) -> bool:
        """Whether the rows of the dataset were read, however many are left of them."""
        return bool(_meta(self.connection, "rows"))

    def add(self, found: list[tuple[int, int, bytes | str]]) -> None:
        """Rollouts as `Feed.since` gives them; one that is there already stays as it is."""
        with self.connection as connection:
            names = Names(connection)
            newest = connection.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()[0]
            for place, _, raw in found:
                line = read_line(raw, place, self.threshold)
                if line is not None and _add_line(connection, line, newest + 1, names):
                    newest += 1
            names.store(connection)
            _note(connection, next=found[-1][1])

    def _add_rows(self, rows: Iterable[Row]) -> None:
        with self.connection as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO rows VALUES (?, ?, ?)",
                ((row.index, row.content_hash, orjson.dumps(row.data, default=str).decode()) for row in rows),
            )
            _note(connection, rows=1)

    def label(self, version: int, said: Callable[[], Iterable[Annotation]]) -> None:
        """Keeps what people said, to filter by; `version` tells it from what they said before."""
        if self.labelled == version:
            return
        rows = [(*one.place, one.label or SAID) for one in said()]
        with self.connection as connection:
            connection.execute("DELETE FROM labels")
            connection.executemany("INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?)", rows)
            _note(connection, labelled=version)

    def close(self) -> None:
        self.connection.close()


class Names:
    """Scores, tools, categories, models and outcomes that occur: the number of each in its kind, and how often."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._amounts: dict[tuple[str, int], int] = {}
        for kind, number, name, amount in connection.execute("SELECT * FROM names ORDER BY kind, number"):
            self._known.setdefault(kind, {})[name] = number
            self._amounts[kind, number] = amount

    def seen(self, kind: str, name: str) -> int:
        """The number of a name, which occurred once more."""
        known = self._known.setdefault(kind, {})
        number = known.setdefault(name, len(known))
        self._amounts[kind, number] = self._amounts.get((kind, number), 0) + 1
        return number

    def store(self, connection: sqlite3.Connection) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO names VALUES (?, ?, ?, ?)",
            [
                (kind, number, name, self._amounts[kind, number])
                for kind, known in self._known.items()
                for name, number in known.items()
            ],
        )


def _add_line(connection: sqlite3.Connection, line: IndexLine, id_: int, names: Names) -> bool:
    """False when its rollout is there already, or another of its row and attempt."""
    at = (line.step, line.row_index, line.attempt)
    if connection.execute("SELECT 1 FROM rollouts WHERE (step, row_index, attempt) = (?, ?, ?)", at).fetchone():
        return False
    own: list[float | None] = [None] * OWN_SCORES
    for name, value in line.scores:
        number = names.seen("score", name)
        if number < OWN_SCORES:
            own[number] = value
        else:
            connection.execute("INSERT INTO more_scores VALUES (?, ?, ?)", (number, id_, value))
    toolset = 0
    for tool in sorted(line.tools):
        number = names.seen("tool", tool)
        if number < OWN_TOOLS:
            toolset |= 1 << number
        else:
            connection.execute("INSERT INTO more_tools VALUES (?, ?)", (number, id_))
    names.seen("outcome", str(line.outcome))
    names.seen("attempt", str(line.attempt))
    category = names.seen("category", line.category) if line.category else None
    model = names.seen("model", line.model) if line.model else None
    connection.execute(_FIGURES, (*at, id_, line.outcome, *line.figures, category, model, toolset, line.place, *own))
    connection.execute(_SLOTS, (line.step, line.row_index, line.outcome == 0, line.outcome != 0))
    connection.execute(_TEXTS, (id_, *line.texts))
    connection.execute("INSERT INTO words(rowid, said) VALUES (?, ?)", (id_, line.words))
    return True


class Fillers:
    """The threads of one process that fill indexes, one a file: whoever asks waits a moment and takes what is there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Path, threading.Thread] = {}

    def filled(self, path: Path, feed: Feed, threshold: float, *, seconds: float) -> tuple[RolloutIndex, IndexProgress]:
        """The index, open, after at most so many seconds of filling; the rest goes on."""
        index = RolloutIndex(path, epoch=feed.epoch, threshold=threshold)
        assert index.path is not None
        total = feed.extent()
        if index.next < total or not index.has_rows:
            self._thread(index.path, lambda: self._fill(path, feed, threshold)).join(seconds)
        return index, IndexProgress(index.next + index.has_rows, total + 1)

    def _thread(self, file: Path, fill: Callable[[], None]) -> threading.Thread:
        with self._lock:
            running = self._running.get(file)
            if running is None or not running.is_alive():
                running = self._running[file] = threading.Thread(target=fill, daemon=True)
                running.start()
            return running

    def _fill(self, path: Path, feed: Feed, threshold: float) -> None:
        with _opened(path, feed.epoch, threshold) as index:
            assert index.path is not None
            with lock_if_free(index.path.with_suffix(".lock")) as free:
                if free:  # else another process fills it
                    index.fill(feed)


@contextmanager
def _opened(path: Path, epoch: str, threshold: float) -> Iterator[RolloutIndex]:
    index = RolloutIndex(path, epoch=epoch, threshold=threshold)
    try:
        yield index
    finally:
        index.close()


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=30, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")  # a torn index is made again
    connection.execute("PRAGMA cache_size = -65536")
    connection.execute("PRAGMA mmap_size = 1073741824")
    return connection


def _connect_to_index(path: Path) -> sqlite3.Connection | None:
    """None for a file that is no whole index. A database that is busy, or a disk that fails, raises: the file is none
    the worse for it."""
    connection = None
    try:
        connection = _connect(str(path))
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return connection
    except sqlite3.OperationalError:
        if connection is not None:
            connection.close()
        raise
    except sqlite3.DatabaseError:
        pass
    if connection is not None:
        connection.close()
    return None


def _meta(connection: sqlite3.Connection, name: str) -> object:
    found = connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return found[0] if found else None


def _note(connection: sqlite3.Connection, **values: object) -> None:
    connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))


def _prune(new: Path) -> None:
    """Removes the indexes that were not used for longest, beyond `FILES`, and those of earlier epochs."""
    found = sorted(new.parent.glob("*.db"), key=_used_at, reverse=True)
    earlier, long_ago = set(new.parent.glob(f"{new.stem.rpartition('~')[0]}*.db")), time.time() - UNUSED_S
    for place, path in enumerate(found):
        if path != new and (place >= FILES or (path in earlier and _used_at(path) < long_ago)):
            _take_away(path)


def _short(epoch: str) -> str:
    return sha256(epoch.encode()).hexdigest()[:12]


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # somebody else prunes, too
        return 0.0


def _take_away(path: Path) -> None:
    for one in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")), path.with_suffix(".lock")):
        one.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Takes the indexes of this name away, with what SQLite and their locks left beside them."""
    for one in (path, *path.parent.glob(f"{path.stem}~*{path.suffix}")):
        _take_away(one)
