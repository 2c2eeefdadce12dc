"""The folder of a run: `run.json` with its plan and sessions, `report.json`, the pulse, and the lock of its writer."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson
from pydantic import ValidationError as PydanticError

from osmosis.base.files import write_bytes
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import FileLock
from osmosis.base.redact import Redactor
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report

SCHEMA = 1


class RunFolder:
    """The files of a run. Secrets are taken out of everything written here."""

    def __init__(self, folder: Path, *, redactor: Redactor | None = None) -> None:
        self.folder = folder
        self.redactor = redactor or Redactor()
        self.run_path = folder / "run.json"
        self.report_path = folder / "report.json"
        self.annotations_path = folder / "annotations.jsonl"
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
            raise Conflict(
                f"another process is writing the run in {self.folder}", hint="wait for it, or choose another --name"
            )
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

    def pulse(self) -> JsonObject | None:
        try:
            pulse: JsonObject = orjson.loads(self.pulse_path.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return None
        return pulse

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
