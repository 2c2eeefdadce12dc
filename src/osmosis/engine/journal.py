"""The run journal: `rollouts.jsonl`, one line per finished rollout, `tokens.jsonl` for tokens of model calls, and
`annotations.jsonl`, what people judged."""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeVar

import orjson
from pydantic import ValidationError as PydanticError

from osmosis.base.files import GrowingFile, append_line, read_object, replacing, write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import FileLock, locked
from osmosis.base.redact import Redactor
from osmosis.engine.rollout_model import writable
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.run.annotations import ANNOTATIONS, Annotation
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import LARGEST_SCORE, CallTokens, Category, Failure, Phase, Rollout
from osmosis.records.run.rows import DerivedKeys, Key

SCHEMA = 1
ARTIFACTS = "artifacts"  # folder of a run, and of a rollout in it


class RunFolder:
    """The files of a run. Secrets are taken out of everything written here."""

    def __init__(self, folder: Path, *, redactor: Redactor | None = None) -> None:
        self.folder = folder
        self.redactor = redactor or Redactor()
        self.run_path = folder / "run.json"
        self.report_path = folder / "report.json"
        self.annotations_path = folder / ANNOTATIONS
        self.pulse_path = folder / "pulse.json"
        self._lock: FileLock | None = None
        self._run: JsonObject = {}
        self._session: dict[str, object] = {}

    @property
    def exists(self) -> bool:
        return self.run_path.exists()

    def lock(self) -> None:
        if self._lock is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        if not lock.take():
            raise Conflict(f"another process is writing {self.folder}", hint="wait for it, or choose another --name")
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
        self._lock = None

    def run(self) -> JsonObject:
        try:
            stored: dict[str, object] = orjson.loads(self.run_path.read_bytes())
        except FileNotFoundError as error:
            raise NotFound(
                f"there is no run in {self.folder}", hint="list the runs of this folder with `osmosis eval list`"
            ) from error
        except orjson.JSONDecodeError as error:
            raise ValidationError(f"{self.run_path} is damaged: {error}") from error
        return stored

    def plan(self) -> EvalPlan:
        try:
            return EvalPlan.model_validate(self.run()["plan"])
        except (KeyError, PydanticError) as error:
            raise ValidationError(f"{self.run_path} has no plan that this version can read: {error}") from error

    def report(self) -> Report | None:
        try:
            return Report.model_validate_json(self.report_path.read_bytes())
        except FileNotFoundError:
            return None

    def write_report(self, report: Report) -> None:
        self._store(self.report_path, report.to_dict())
        self.end_session(report.stopped)

    def note(self, **facts: object) -> None:
        if any(self._run.get(name) != fact for name, fact in facts.items()):
            self._run.update(facts)
            self._write_run()

    def keep_pulse(self, pulse: Mapping[str, object]) -> None:
        """Write the rollouts in flight now; a disk that refuses it costs the run nothing."""
        with suppress(OSError):
            write_bytes(self.pulse_path, self._redact(orjson.dumps(pulse)))

    def pulse(self) -> JsonObject:
        return read_object(self.pulse_path)

    def begin_session(self, plan: EvalPlan, facts: Mapping[str, object] | None = None) -> None:
        before = self.run() if self.exists else {"created_at": utc_now().isoformat(), "sessions": []}
        self._session = {"started_at": utc_now().isoformat(), "pid": os.getpid(), "duration_ms": 0.0}
        self._run = {**before, **(facts or {}), "schema": SCHEMA, "plan": plan.model_dump(mode="json")}
        self._run["sessions"] = [*before.get("sessions", []), self._session]
        self._write_run()

    def session_took(self, duration_ms: float) -> None:
        self._session["duration_ms"] = round(duration_ms, 1)

    def end_session(self, stopped: str | None = None) -> None:
        if not self._session:
            return
        self._session["ended_at"] = utc_now().isoformat()
        if stopped:
            self._session["stopped"] = stopped
        self._write_run()

    def duration_before(self) -> float:
        return sum(float(s.get("duration_ms") or 0.0) for s in self._run.get("sessions", []) if s is not self._session)

    def _write_run(self) -> None:
        self._session.setdefault("python", sys.version.split()[0])
        self._store(self.run_path, self._run)

    def _store(self, path: Path, data: Mapping[str, object]) -> None:
        write_bytes(path, orjson.dumps(self.redactor.data(data), option=orjson.OPT_INDENT_2) + b"\n", durable=True)

    def _redact(self, line: bytes) -> bytes:
        if self.redactor.touches(line):
            return orjson.dumps(self.redactor.data(orjson.loads(line))) + b"\n"
        return line


_DAMAGE_SHOWN = 5
Parsed = TypeVar("Parsed")


def key_of(line: JsonObject) -> Key:
    return (line.get("step", 0), line["row_key"], line["attempt"])


class StoredRollouts(RunFolder):
    def __init__(self, folder: Path, *, redactor: Redactor | None = None) -> None:
        super().__init__(folder, redactor=redactor)
        self.rollouts_path = folder / "rollouts.jsonl"
        self.tokens_path = folder / "tokens.jsonl"
        self.damaged_at: list[int] = []
        self._line_number = 0

    @property
    def empty(self) -> bool:
        return not self.rollouts_path.exists() or not self.rollouts_path.stat().st_size

    def source(self) -> IO[bytes]:
        return self.rollouts_path.open("rb")

    def lines(self) -> Iterator[JsonObject]:
        return (line for line, _ in self.positions())

    def positions(self) -> Iterator[tuple[JsonObject, int]]:
        read_keys: set[Key] = set()
        keys = DerivedKeys()
        for line, offset in self._read(orjson.loads):
            try:
                line["row_key"] = keys.of(line.get("row_key"), line["row_index"], (line.get("hashes") or {}).get("row"))
                key = key_of(line)
            except (AttributeError, KeyError, TypeError):
                self._damage()
                continue
            if key not in read_keys:
                read_keys.add(key)
                yield line, offset

    def in_order(self) -> Iterator[JsonObject]:
        places = sorted((line["row_index"], line["attempt"], offset) for line, offset in self.positions())
        if not places:
            return
        with self.source() as source:
            for _, _, offset in places:
                source.seek(offset)
                yield orjson.loads(source.readline())

    def rollouts(self, seen: set[Key] | None = None) -> Iterator[Rollout]:
        seen = set() if seen is None else seen
        keys = DerivedKeys()
        for rollout, _ in self._read(_read_rollout):
            rollout.row_key = keys.of(rollout.row_key, rollout.row_index, rollout.hashes.get("row"))
            if rollout.key not in seen:
                seen.add(rollout.key)
                yield rollout

    def finished(self) -> set[Key]:
        keys: set[Key] = set()
        for _ in self.rollouts(keys):
            pass
        return keys

    def tokens(self) -> Iterator[tuple[str, list[CallTokens | None]]]:
        if not self.tokens_path.exists():
            return
        with self.tokens_path.open("rb") as lines:
            for line in lines:
                try:
                    stored = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # cut off while it was written: its rollout is owed again
                calls = stored["llm_call_metrics"]
                yield stored["rollout_id"], [None if call is None else CallTokens(**call) for call in calls]

    def damage(self) -> str | None:
        if not self.damaged_at:
            return None
        lines = ("line " if len(self.damaged_at) == 1 else "lines ") + ", ".join(map(str, self.damaged_at))
        return f"{self.rollouts_path}: {lines} cannot be read; what was stored there is run again"

    def _read(self, parse: Callable[[bytes], Parsed]) -> Iterator[tuple[Parsed, int]]:
        if self.empty:
            return
        with self.source() as source:
            begin = end = 0
            for number, raw in enumerate(source, 1):
                begin, end = end, end + len(raw)
                if not raw.endswith(b"\n"):
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
        if len(self.damaged_at) < _DAMAGE_SHOWN and number not in self.damaged_at:
            self.damaged_at.append(number)


class Journal(StoredRollouts):
    """Writes the rollouts of a run's folder. Reading needs no `open`; writing does."""

    def __init__(self, folder: Path, *, redactor: Redactor | None = None) -> None:
        super().__init__(folder, redactor=redactor)
        self._file: GrowingFile | None = None

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def open(self, plan: EvalPlan, *, facts: Mapping[str, object] | None = None) -> None:
        self.lock()
        self._cut_torn_line()
        self._file = GrowingFile(self.rollouts_path)
        self.begin_session(plan, facts)  # last: the names of both files are on the disk then

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None
        super().close()

    def append(self, rollout: Rollout) -> None:
        self.append_all([rollout])

    def append_all(self, rollouts: list[Rollout]) -> list[Rollout]:
        if self._file is None:
            raise ValidationError("this journal is not open for writing")
        lines, tokens, stored = [], [], []
        for rollout in rollouts:
            line, written = writable(rollout)
            lines.append(self.stored_line(written, self._redact(line)))
            stored.append(written)
            if any(call.tokens is not None for call in rollout.calls):
                # In the names of a trajectory; null for a call without tokens.
                calls = [call.tokens.to_dict() if call.tokens else None for call in rollout.calls]
                head = {"rollout_id": rollout.rollout_id, "row_index": rollout.row_index, "attempt": rollout.attempt}
                tokens.append(self._redact(orjson.dumps({**head, "llm_call_metrics": calls}) + b"\n"))
        if tokens:  # before the rollouts count: one that is stored has its tokens stored
            append_line(self.tokens_path, b"".join(tokens))
        self._file.append(b"".join(lines))
        return stored

    def line(self, rollout: Rollout) -> bytes:
        return self._redact(writable(rollout)[0])

    def stored_line(self, rollout: Rollout, line: bytes) -> bytes:
        return line

    def drop(self, keys: Collection[Key]) -> int:
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
        keys: set[Key] = set()
        with self.rewriting() as out:
            for line in self.lines():
                if line["row_key"] in rows:
                    line["row_key"], line["row_index"] = rows[line["row_key"]]
                if key_of(line) not in keys:
                    keys.add(key_of(line))
                    out.write(orjson.dumps(line) + b"\n")

    @contextmanager
    def rewriting(self) -> Iterator[IO[bytes]]:
        """Open a new `rollouts.jsonl`, which replaces the old one at the end, at once or not at all."""
        with replacing(self.rollouts_path, durable=True) as out:
            yield out
        if self._file is not None:
            self._file.close()
            self._file = GrowingFile(self.rollouts_path)

    def _cut_torn_line(self) -> None:
        if not self.rollouts_path.exists():
            return
        with self.rollouts_path.open("rb+") as file:
            size = file.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                start = max(0, end - 65536)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                if newline >= 0:
                    end = start + newline + 1
                    break
                end = start
            if end < size:
                file.truncate(end)
                os.fsync(file.fileno())


def _read_rollout(line: bytes) -> Rollout:
    rollout = Rollout.model_validate_json(line)
    for score in rollout.scores.values():
        if score.value is not None and abs(score.value) > LARGEST_SCORE:  # stored by an earlier version
            message = f"the score {score.value:g} is beyond {LARGEST_SCORE:g}"
            score.value = None
            score.failure = Failure(phase=Phase.SCORE, category=Category.INVALID_SCORE, message=message)
    return rollout


LINGER_S = 0.02
BACKLOG = 2048


class Recorder:
    """`put` rollouts; `on_stored` receives them once they are durable, without a journal at once."""

    def __init__(self, journal: Journal | None, on_stored: Callable[[list[Rollout]], None]) -> None:
        self.error: Exception | None = None
        self.failed = asyncio.Event()
        self._journal = journal
        self._on_stored = on_stored
        self._pending: list[Rollout] = []
        self._writing: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal") if journal is not None else None

    def put(self, rollout: Rollout) -> None:
        if self._journal is None:
            self._on_stored([rollout])
        elif self.error is None:
            self._pending.append(rollout)
            if self._writing is None:
                self._writing = asyncio.create_task(self._write(self._journal))

    def take(self) -> list[Rollout]:
        rollouts, self._pending = self._pending, []
        return rollouts

    @property
    def behind(self) -> bool:
        return len(self._pending) > BACKLOG

    async def drain(self) -> None:
        self._hurry.set()
        try:
            if self._writing is not None:
                await asyncio.wait({self._writing})
        finally:
            self._hurry.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=self._writing is None)  # a write that hangs is not waited for

    async def _write(self, journal: Journal) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                gathering = asyncio.create_task(self._hurry.wait())
                await asyncio.wait({gathering}, timeout=LINGER_S)
                gathering.cancel()
                batch, self._pending = self._pending, []
                self._on_stored(await loop.run_in_executor(self._thread, journal.append_all, batch))
        except Exception as error:  # noqa: BLE001 - a recorder that fails must end the run, whatever it failed of
            self.error = error
            self._pending.clear()
            self.failed.set()
        finally:
            self._writing = None


def read_annotations(path: Path) -> list[Annotation]:
    """Return them as they were written; a line that is no annotation is passed over."""
    annotations = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            annotations.append(Annotation.model_validate_json(line))
        except PydanticError:
            continue
    return annotations


class AnnotationFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / ANNOTATIONS
        self._lock = folder / ".annotations.lock"

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self) -> list[Annotation]:
        return read_annotations(self.path)

    def merge(self, annotations: Iterable[Annotation]) -> int:
        with locked(self._lock):
            existing = {annotation.identity for annotation in self.read()}
            new = [annotation for annotation in annotations if annotation.identity not in existing]
            for annotation in sorted(new, key=lambda annotation: annotation.created_at):
                append_line(self.path, annotation.to_line())
        return len(new)

    def add(self, annotation: Annotation) -> None:
        with locked(self._lock):
            append_line(self.path, annotation.to_line())
