"""The run journal: one folder per run, `run.json`, `rollouts.jsonl` and `report.json`; token ids and log-probabilities
that agents asked for stand beside, in `tokens.jsonl`.

`rollouts.jsonl` only grows, one line per finished rollout, and a line counts once it is on disk. A torn last line
is cut off and its rollout is owed again. Secrets are taken out here, the one place where rollouts are written.
One process writes a journal at a time. Nothing in here decides what is worth running again.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import orjson
from pydantic import ValidationError as PydanticError

from osmosis.base.files import GrowingFile, append_line, replacing, write_bytes
from osmosis.base.json_types import JsonObject
from osmosis.base.light_dataclass import dataclass
from osmosis.base.locks import FileLock
from osmosis.base.redact import Redactor
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.keys import DerivedKeys, Key
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.records.rollout import CallTokens, Rollout

from .key_set import KeySet
from .writable import writable

if TYPE_CHECKING:
    from .outcome import Outcome

SCHEMA = 1
_DAMAGE_SHOWN = 5
Parsed = TypeVar("Parsed")


def key_of(line: JsonObject) -> Key:
    """Of a stored rollout as `Journal.lines` gives it."""
    return (line.get("step", 0), line["row_key"], line["attempt"])


def tokens_line(rollout: Rollout) -> bytes:
    """The tokens of a rollout's calls as one line, in the names of a trajectory; null for a call that has none."""
    calls = [call.tokens.to_dict() if call.tokens else None for call in rollout.calls]
    head = {"rollout_id": rollout.rollout_id, "row_index": rollout.row_index, "attempt": rollout.attempt}
    return orjson.dumps({**head, "llm_call_metrics": calls}) + b"\n"


class Places:
    """Where each stored rollout stands: its row, its attempt and the offset of its line; 24 bytes for each."""

    def __init__(self) -> None:
        self._rows, self._attempts, self._offsets = array("q"), array("q"), array("q")

    def add(self, row_index: int, attempt: int, offset: int) -> None:
        self._rows.append(row_index)
        self._attempts.append(attempt)
        self._offsets.append(offset)

    def __len__(self) -> int:
        return len(self._rows)

    def in_order(self) -> list[int]:
        """The offsets by row, then attempt."""
        return [offset for _, _, offset in sorted(zip(self._rows, self._attempts, self._offsets, strict=True))]


@dataclass(slots=True)
class JournalBatch:
    """Rollouts on their way to the disk."""

    kept: list[Rollout] = field(default_factory=list)
    """As they are stored: one that could not be written as it was is a failed one."""
    lines: list[bytes] = field(default_factory=list)
    as_is: list[bool] = field(default_factory=list)
    """Whether nothing was taken out of the line."""
    tokens: list[bytes] = field(default_factory=list)
    """The lines of what is known of tokens."""


class Journal:
    """The journal in this folder. Reading needs no `open`; writing does."""

    def __init__(self, folder: Path, *, redactor: Redactor | None = None) -> None:
        self.folder = folder
        self.redactor = redactor or Redactor()
        self.run_path = folder / "run.json"
        self.rollouts_path = folder / "rollouts.jsonl"
        self.report_path = folder / "report.json"
        self.tokens_path = folder / "tokens.jsonl"
        """Token ids and log-probabilities of the model calls, where agents asked for them; a line per rollout."""
        self.annotations_path = folder / "annotations.jsonl"
        """What people said about the rollouts; written by whoever shows them."""
        self.pulse_path = folder / "pulse.json"
        """What is in flight, rewritten once a second while the run goes on."""
        self.damaged = 0
        """Lines that could not be read; their rollouts are owed again."""
        self.damaged_at: list[int] = []
        """The numbers (from 1) of the first of them; a last line that was cut off while it was written is none."""
        self._line_number = 0
        self._file: GrowingFile | None = None
        self._lock: FileLock | None = None
        self._run: JsonObject = {}
        self._session: dict[str, object] = {}
        self._written: Places | None = None
        """Of a journal that was empty when it was opened: nothing of it has to be read to know."""
        self._end = 0
        self.heard: Callable[[Rollout, bytes, bool], None] | None = None
        """Told of each stored rollout: its line, and whether nothing was taken out of that."""

    @property
    def exists(self) -> bool:
        return self.run_path.exists()

    @property
    def is_open(self) -> bool:
        """Whether rollouts can be appended now."""
        return self._file is not None

    def open(self, plan: EvalPlan, *, facts: Mapping[str, object] | None = None) -> None:
        """Makes the folder, or takes it up again; raises `Conflict` while another process writes it.

        `facts` are further keys of `run.json`, for whoever resumes the run.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.lock()
        self._cut_torn_line()
        before = self.run() if self.exists else {"created_at": utc_now().isoformat(), "sessions": []}
        self._session = {"started_at": utc_now().isoformat(), "pid": os.getpid(), "duration_ms": 0.0}
        self._run = {**before, **(facts or {}), "schema": SCHEMA, "plan": plan.model_dump(mode="json")}
        self._run["sessions"] = [*before.get("sessions", []), self._session]
        self._file = GrowingFile(self.rollouts_path)
        self._end = self._file.size
        self._written = Places() if self._end == 0 else None
        self._write_run()  # last: the names of both files are on the disk then

    def lock(self) -> None:
        """Keeps other processes from writing here until `close`."""
        if self._lock is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        if not lock.take():
            raise Conflict(
                f"another process is writing the run in {self.folder}", hint="wait for it, or choose another --name"
            )
        self._lock = lock

    def append(self, rollout: Rollout) -> None:
        """One rollout, on disk when this returns."""
        self.append_all([rollout])

    def append_all(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Several rollouts with one wait for the disk; all of them are on disk when this returns.

        They come back as they were stored: one that could not be written as it was is a failed one now.
        """
        batch = self.batch(rollouts)
        self.write(batch)
        return self.written(batch)

    # The three steps of `append_all`. Only the middle one waits for the disk, so only that one belongs in a thread: a
    # thread that makes lines takes the interpreter's lock from the event loop, and each time both wait for it.

    def batch(self, rollouts: list[Rollout]) -> JournalBatch:
        """The lines of these rollouts."""
        batch = JournalBatch()
        for rollout in rollouts:
            line, kept = writable(rollout)
            safe = self._safe(line)
            batch.lines.append(self.stored_line(kept, safe))
            batch.kept.append(kept)
            batch.as_is.append(safe is line)
            if any([call.tokens is not None for call in rollout.calls]):
                batch.tokens.append(self._safe(tokens_line(rollout)))
        return batch

    def write(self, batch: JournalBatch) -> None:
        """They are on disk when this returns."""
        if self._file is None:
            raise ValidationError("this journal is not open for writing")
        if batch.tokens:  # before the rollouts count: one that is stored has its tokens stored
            append_line(self.tokens_path, b"".join(batch.tokens))
        self._file.append(b"".join(batch.lines))

    def written(self, batch: JournalBatch) -> list[Rollout]:
        """Notes where they stand, and tells of them; they come back as they were stored."""
        for kept, line, same in zip(batch.kept, batch.lines, batch.as_is, strict=True):
            if self._written is not None:
                self._written.add(kept.row_index, kept.attempt, self._end)
            if self.heard is not None:
                self.heard(kept, line, same)
            self._end += len(line)
        return batch.kept

    def tokens(self) -> Iterator[tuple[str, list[CallTokens | None]]]:
        """`(rollout_id, tokens of each call)` of what was kept; ids of rollouts that were run again are among them."""
        if not self.tokens_path.exists():
            return
        with self.tokens_path.open("rb") as lines:
            for line in lines:
                try:
                    found = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # cut off while it was written: its rollout is owed again
                calls = found["llm_call_metrics"]
                yield found["rollout_id"], [None if call is None else CallTokens(**call) for call in calls]

    def keep_pulse(self, pulse: Mapping[str, object]) -> None:
        """What is in flight now, for another process that asks; a disk that refuses it costs the run nothing."""
        with suppress(OSError):
            write_bytes(self.pulse_path, self._safe(orjson.dumps(pulse)))

    def pulse(self) -> JsonObject | None:
        """What was in flight when the process that writes, or wrote, this journal last said so."""
        try:
            found: JsonObject = orjson.loads(self.pulse_path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return found

    def line(self, rollout: Rollout) -> bytes:
        """The rollout as it is stored: one line, without any secret."""
        return self._safe(writable(rollout)[0])

    def _safe(self, line: bytes) -> bytes:
        if self.redactor.touches(line):
            return orjson.dumps(self.redactor.data(orjson.loads(line))) + b"\n"
        return line

    def stored_line(self, rollout: Rollout, line: bytes) -> bytes:
        """The rollout's line as it goes to the disk: a kind of run may keep more in it."""
        return line

    def lines(self) -> Iterator[JsonObject]:
        """Every stored rollout as parsed JSON with its row key, first come, each key once."""
        return (line for line, _ in self.positions())

    def positions(self) -> Iterator[tuple[JsonObject, int]]:
        """`lines`, each with its offset in the file."""
        seen, keys = KeySet(), DerivedKeys()
        for line, offset in self._read(orjson.loads):
            try:
                row_hash = (line.get("hashes") or {}).get("row")
                line["row_key"] = keys.of(line.get("row_key"), line["row_index"], row_hash)
                new = seen.add(key_of(line))
            except (AttributeError, KeyError, TypeError):
                self._damage()
                continue
            if new:
                yield line, offset

    def in_order(self) -> Iterator[JsonObject]:
        """`lines` by row, then attempt; keeps places in memory, not rollouts."""
        places = self._written
        if places is None:
            places = Places()
            for line, offset in self.positions():
                places.add(line["row_index"], line["attempt"], offset)
        if not self.rollouts_path.exists():
            return
        with self.rollouts_path.open("rb") as source:
            for offset in places.in_order():
                source.seek(offset)
                yield orjson.loads(source.readline())

    def outcomes(self, seen: KeySet | None = None) -> Iterator[Outcome]:
        """`lines`, as far as figures and resume need them; each key is added to `seen`."""
        if self.empty:
            return
        from .outcome import read_outcome

        seen = KeySet() if seen is None else seen
        keys = DerivedKeys()
        for outcome, _ in self._read(read_outcome):
            row_key = outcome.row_key
            if row_key is None:
                row_key = outcome.row_key = keys.of(None, outcome.row_index, outcome.hashes.get("row"))
            if seen.add((outcome.step, row_key, outcome.attempt)):
                yield outcome

    @property
    def written_here(self) -> int | None:
        """How many rollouts there are, where all of them were stored since this journal was opened; else None."""
        return None if self._written is None else len(self._written)

    @property
    def empty(self) -> bool:
        """Whether no rollout is stored."""
        return not self.rollouts_path.exists() or not self.rollouts_path.stat().st_size

    def source(self) -> IO[bytes]:
        """What is stored, to be read from its beginning; only where it is not `empty`."""
        return self.rollouts_path.open("rb")

    def _read(self, parse: Callable[[bytes], Parsed]) -> Iterator[tuple[Parsed, int]]:
        """What `parse` makes of each whole line, and where it begins; the others are counted as damaged."""
        if self.empty:
            return
        with self.source() as source:
            begin = end = 0
            for number, raw in enumerate(source, 1):
                begin, end = end, end + len(raw)
                if not raw.endswith(b"\n"):
                    self.damaged += 1
                    return
                try:
                    parsed = parse(raw)
                except ValueError:
                    self._damage(number)
                    continue
                self._line_number = number
                yield parsed, begin

    def _damage(self, number: int | None = None) -> None:
        number = self._line_number if number is None else number
        self.damaged += 1
        if len(self.damaged_at) < _DAMAGE_SHOWN and number not in self.damaged_at:
            self.damaged_at.append(number)

    def damage(self) -> str | None:
        """What a reading found to be damaged, as a sentence; None when nothing was."""
        if not self.damaged_at:
            return None
        lines = ("line " if len(self.damaged_at) == 1 else "lines ") + ", ".join(map(str, self.damaged_at))
        return f"{self.rollouts_path}: {lines} cannot be read; what was stored there is run again"

    def rollouts(self) -> Iterator[Rollout]:
        """Every stored rollout, in the order in which they finished."""
        for line in self.lines():
            yield Rollout.model_validate(line)

    def finished(self) -> KeySet:
        """The keys of every stored rollout."""
        found = KeySet()
        deque(self.outcomes(found), maxlen=0)
        return found

    def drop(self, keys: KeySet) -> int:
        """Takes these rollouts out, into `superseded.jsonl`, so that they are owed again. Returns how many."""
        dropped = 0
        with self.rewriting() as keep, (self.folder / "superseded.jsonl").open("ab") as old:
            for line in self.lines():
                out: IO[bytes] = keep
                if key_of(line) in keys:
                    out, dropped = old, dropped + 1
                out.write(orjson.dumps(line) + b"\n")
            old.flush()
            os.fsync(old.fileno())
        return dropped

    def move(self, rows: Mapping[str, tuple[str, int]]) -> None:
        """Gives the rollouts of these rows, by their row keys, the keys and places that are theirs now."""
        seen = KeySet()
        with self.rewriting() as out:
            for line in self.lines():
                if line["row_key"] in rows:
                    line["row_key"], line["row_index"] = rows[line["row_key"]]
                if seen.add(key_of(line)):
                    out.write(orjson.dumps(line) + b"\n")

    @contextmanager
    def rewriting(self) -> Iterator[IO[bytes]]:
        """Takes a complete new `rollouts.jsonl`, put in place of the old one at the end, at once or not at all."""
        with replacing(self.rollouts_path, durable=True) as out:
            yield out
        self._written = None
        if self._file is not None:
            self._file.close()
            self._file = GrowingFile(self.rollouts_path)

    def run(self) -> JsonObject:
        """`run.json`: the plan, when it was made, its sessions, what it was made from."""
        try:
            found: dict[str, object] = orjson.loads(self.run_path.read_bytes())
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no run in {self.folder}", hint="list the runs of this folder with `osmosis eval report`"
            ) from error
        except orjson.JSONDecodeError as error:
            raise ValidationError(f"{self.run_path} is damaged: {error}") from error
        return found

    def plan(self) -> EvalPlan:
        try:
            return EvalPlan.model_validate(self.run()["plan"])
        except (KeyError, PydanticError) as error:
            raise ValidationError(f"{self.run_path} has no plan that this version can read: {error}") from error

    def write_report(self, report: Report) -> None:
        """Stores the report, and the end of this session."""
        self._store(self.report_path, report.to_dict())
        self.end_session(report.stopped)

    def report(self) -> Report | None:
        """The stored report; None while the run has not ended."""
        try:
            return Report.model_validate_json(self.report_path.read_bytes())
        except FileNotFoundError:
            return None

    def note(self, **facts: object) -> None:
        """Adds keys to `run.json` while the run is open; what is there already costs no wait for the disk."""
        if any(self._run.get(name) != fact for name, fact in facts.items()):
            self._run.update(facts)
            self._write_run()

    def session_took(self, duration_ms: float) -> None:
        """How long this session ran, for the sum over all sessions."""
        self._session["duration_ms"] = round(duration_ms, 1)

    def end_session(self, stopped: str | None = None) -> None:
        """Notes in `run.json` when and why this session ended."""
        if not self._session:
            return
        self._session["ended_at"] = utc_now().isoformat()
        if stopped:
            self._session["stopped"] = stopped
        self._write_run()

    def duration_before(self) -> float:
        """Milliseconds of the sessions before this one."""
        return sum(float(s.get("duration_ms") or 0.0) for s in self._run.get("sessions", []) if s is not self._session)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()
        self._file = self._lock = None

    def _write_run(self) -> None:
        self._session.setdefault("python", sys.version.split()[0])
        self._store(self.run_path, self._run)

    def _store(self, path: Path, data: Mapping[str, object]) -> None:
        safe = orjson.dumps(self.redactor.data(data), option=orjson.OPT_INDENT_2)
        write_bytes(path, safe + b"\n", durable=True)

    def _cut_torn_line(self) -> None:
        if not self.rollouts_path.exists():
            return
        with self.rollouts_path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
            if end < size:
                file.truncate(end)
                os.fsync(file.fileno())
