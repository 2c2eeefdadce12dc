"""From the files of a local run to a finished run: read, judged, stored, their artifacts taken over.

Files are read and judged before a writer's session is open: load, read into one draft of rollouts, store those in
batches under a run that nobody sees yet (others write in between), then let it be seen, in one transaction. What a
crash leaves is removed or finished at a later start. A local run becomes one run here: another upload of it takes
that run's place, and only when that is asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis.base.json_types import JsonObject
from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import changed_by
from osmosis.platform.objects.local_folder import remove
from osmosis.platform.objects.parts import IMPORTS
from osmosis.platform.readers import read_with
from osmosis.platform.security.tokens import new_token
from osmosis.platform.services import job_specs, judgements, rollouts, run_lifecycle
from osmosis.records.annotation import Annotation
from osmosis.records.base import utc_now
from osmosis.records.report import Report
from osmosis.records.run import Stage
from osmosis.records.run_status import RunStatus

from . import sessions
from .manifest import ANNOTATIONS, LOGS, TOKENS, UploadedRun, artifact_of

log = logging.getLogger(__name__)

BATCH = 200
UNSEEN = "import"
"""The kind of a run whose rollouts are on their way in: no list and no name finds it."""
ABANDONED_AFTER = timedelta(hours=6)
READ_S = 60.0
BYTES_PER_S = 2 * 1024 * 1024
"""Reading an upload may take `READ_S`, and a second more for each of so many bytes."""
READ_MEMORY_MB = 2048
LOG_LINES = 5000
"""The last lines of a local run's log are kept."""
NAME_TRIES = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """What the files of a session said."""

    rows: list[int]
    report: Report


def finalize(platform: Platform, import_id: str) -> None:
    """Make the run. Conflict while files are missing; ValidationError when they contradict each other."""
    with platform.db.read() as session:
        row = session.get_one(tables.Import, import_id)
        files = sessions.files_of(session, import_id)
    if row.status == sessions.UPLOADING:
        pending = [file.path for file in files if not file.uploaded]
        if pending:
            raise Conflict(f"{len(pending)} files are missing, the first is {pending[0]}", hint="upload the run again")
        _take_in(platform, row, files)
    _settle(platform, import_id)


def _take_in(platform: Platform, row: tables.Import, files: list[tables.ImportFile]) -> None:
    numbers = {file.path: file.number for file in files}
    here = {path: platform.objects.fetch(sessions.file_key(row.id, number)) for path, number in numbers.items()}
    log_file = here.get(LOGS)
    draft = sessions.folder_of(platform, row.id) / f"draft.{new_token('')[:12]}" / "rollouts.jsonl"
    try:
        reading = _read(row, files, here, platform, draft)
        staged = _Staged(_stage(platform, row, reading, draft), reading, draft.with_name(ANNOTATIONS), log_file)
        try:
            _show(platform, row.id, staged)
        finally:
            _forget(platform, staged.run_id)  # unless it is seen now
    finally:
        remove(draft.parent)


@dataclass(frozen=True, slots=True)
class _Staged:
    """A run that is stored and that nobody sees yet, with what comes to it when it is seen."""

    run_id: str
    reading: Reading
    annotations: Path
    log: Path | None


def _stage(platform: Platform, row: tables.Import, reading: Reading, draft: Path) -> str:
    """Store the rollouts under a run that nobody sees, and leave the database to others in between; its id."""
    with platform.db.write() as session:
        values = _values(session, row, UploadedRun.model_validate(row.run), reading)
        name = f"{row.id}-{new_token('')[:12]}"
        run = tables.Run(id=tables.new_id(), workspace_id=row.workspace_id, kind=UNSEEN, name=name, **values)
        session.add(run)
    with draft.open("rb") as lines:
        while batch := list(itertools.islice(lines, BATCH)):
            columns, began = [orjson.loads(line) for line in batch], time.monotonic()
            with platform.db.write() as session:
                rollouts.store_columns(session, run.id, columns)
            time.sleep(time.monotonic() - began)  # SQLite has one writer, and no queue of those who wait
    return run.id


def _show(platform: Platform, import_id: str, staged: _Staged) -> None:
    for attempt in itertools.count(1):
        try:
            with platform.db.write() as session:
                _store(session, import_id, staged)
            return
        except IntegrityError:  # another run took the name in that moment
            if attempt == NAME_TRIES:
                raise Conflict("too many uploads at the same time", hint="upload the run again") from None


def _forget(platform: Platform, staged: str) -> None:
    """Remove a run that nobody saw, in batches, too."""
    unseen = sa.select(tables.Run.id).where(tables.Run.id == staged, tables.Run.kind == UNSEEN)
    some = sa.select(tables.Rollout.id).where(tables.Rollout.run_id.in_(unseen)).limit(BATCH)
    gone = BATCH
    while gone:
        with platform.db.write() as session:
            gone = changed_by(session, sa.delete(tables.Rollout).where(tables.Rollout.id.in_(some)))
    with platform.db.write() as session:
        session.execute(sa.delete(tables.Run).where(tables.Run.id.in_(unseen)))


def _read(
    row: tables.Import, files: list[tables.ImportFile], here: Mapping[str, Path], platform: Platform, draft: Path
) -> Reading:
    """Every rollout, checked by a process of its own, one line each in `draft`, and the report."""
    folder = sessions.folder_of(platform, row.id)
    where = {path: str(file) for path, file in here.items()}
    size = sum(file.size for file in files)
    draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    said = read_with(
        ["-m", "osmosis.platform.run_upload.reading"],
        {"files": where, "run": row.run, "draft": str(draft), "annotations": str(draft.with_name(ANNOTATIONS))},
        what="this run",
        files=[folder],
        write=[draft.parent],
        seconds=READ_S + size / BYTES_PER_S,
        memory_mb=READ_MEMORY_MB,
    )
    found: JsonObject = said if isinstance(said, dict) else {}
    return Reading(found["rows"], Report.model_validate(found["report"]))


def _store(session: Session, import_id: str, staged: _Staged) -> None:
    row = session.get_one(tables.Import, import_id, with_for_update=True)
    if row.status != sessions.UPLOADING:
        return  # another request was faster
    run = _become_run(session, row, staged)
    with staged.annotations.open("rb") as lines:
        sender = session.get(tables.User, row.creator_id) if row.creator_id else None
        judgements.merge(session, run.id, map(Annotation.model_validate_json, lines), sender)
    _add_log(session, run, _last_lines(staged.log))


def _last_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    with path.open(encoding="utf-8", errors="replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, LOG_LINES)]


def _become_run(session: Session, row: tables.Import, staged: _Staged) -> tables.Run:
    """The finished run of a session: the staged one, seen from now on, or the earlier one with its rollouts."""
    local = UploadedRun.model_validate(row.run)
    creator = session.get(tables.User, row.creator_id) if row.creator_id else None
    earlier = sessions.run_of(session, row.workspace_id, row.local_run_id)
    if earlier is not None and not row.reimport:
        sessions.refuse_second(session, row.workspace_id, row.local_run_id)
    if earlier is None:
        run, before = session.get_one(tables.Run, staged.run_id), None
        run.kind, run.name = "eval", _free_name(session, row.workspace_id, local.name)
        run.created_at = utc_now()
    else:
        run, before = earlier, earlier.status
        _clear(session, run, _values(session, row, local, staged.reading))
        theirs = sa.update(tables.Rollout).where(tables.Rollout.run_id == staged.run_id)
        session.execute(theirs.values(run_id=run.id))
    session.flush()
    who = f" by {creator.name}" if creator else ""
    reason = f"uploaded{' again' if before else ''}{who} from a local run"
    session.add(tables.RunEvent(run_id=run.id, before=before, status=run.status, reason=reason))
    row.status, row.run_id = sessions.FINALIZED, run.id
    session.flush()
    return run


def _clear(session: Session, run: tables.Run, values: dict[str, object]) -> None:
    """Make room in a run that was uploaded before."""
    for table in (tables.Rollout, tables.RunLog):
        session.execute(sa.delete(table).where(table.run_id == run.id))
    older = sa.update(tables.Import).where(tables.Import.run_id == run.id)
    session.execute(older.values(status=sessions.REPLACED, run_id=None))
    run.retries += 1  # files of the earlier upload lie in the folder of the earlier one
    for key, value in values.items():
        setattr(run, key, value)


def _values(session: Session, row: tables.Import, local: UploadedRun, reading: Reading) -> dict[str, object]:
    experiment, source = local.experiment_config, local.experiment_config.rollout
    query = sa.select(tables.Dataset).where(
        tables.Dataset.workspace_id == row.workspace_id, tables.Dataset.sha256 == (experiment.dataset.sha256 or "-")
    )
    dataset = session.scalars(query.limit(1)).first()
    report, now = reading.report, utc_now()
    config = {"rollout": source.name, "entrypoint": experiment.entrypoint, "model_path": experiment.model_path}
    return {
        "dataset_id": dataset.id if dataset else None,
        "creator_id": row.creator_id,
        "status": RunStatus.FINISHED.value,
        "config": {
            "experiment": {**config, "dataset": experiment.dataset.name},
            "evaluation": local.evaluation_config.to_dict(),
        },
        "rollout": source.name,
        "model_path": experiment.model_path,
        "dataset": experiment.dataset.name,
        "dataset_path": dataset.path or "" if dataset else "",
        "dataset_sha256": experiment.dataset.sha256,
        "dataset_rows": report.dataset_rows or (dataset.row_count if dataset else None),
        "branch": source.branch,
        "commit_sha": source.commit_sha or "",
        "rows": reading.rows,
        "sampled_rows": len(reading.rows),
        "secret_scopes": {},
        "progress": {"stage": Stage.REPORT.value, "completed": report.completed, "total": report.total},
        "report": report.to_dict(),
        "imported": {"local_run_id": row.local_run_id, "name": local.name, "provenance": row.provenance},
        "started_at": _aware(local.started_at) or now,
        "completed_at": _aware(local.completed_at) or now,
        "updated_at": now,
    }


def _aware(value: datetime | None) -> datetime | None:
    return value.replace(tzinfo=timezone.utc) if value is not None and value.tzinfo is None else value


def _free_name(session: Session, workspace_id: str, wanted: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")[:90] or "run"
    query = sa.select(tables.Run.name).where(
        tables.Run.workspace_id == workspace_id, tables.Run.kind == "eval", tables.Run.name.startswith(stem)
    )
    taken = set(session.scalars(query))
    name, number = stem, 2
    while name in taken:
        name, number = f"{stem}-{number}", number + 1
    return name


def _add_log(session: Session, run: tables.Run, lines: Iterable[str]) -> None:
    """Lines of the local run's own log, under the time at which that run began."""
    session.add_all(
        tables.RunLog(
            run_id=run.id, timestamp=run.started_at or utc_now(), step="local", message=run_lifecycle.storable(line)
        )
        for line in lines
    )


def _settle(platform: Platform, import_id: str) -> None:
    """Artifacts go to the run's folder, the rest of the upload goes away. Done again, it finds nothing to do."""
    objects = platform.objects
    with platform.db.read() as session:
        row = session.get(tables.Import, import_id)
        moves = list(_moves(session, row)) if row is not None and row.run_id else []
    for source, target in moves:
        with contextlib.suppress(NotFound, FileNotFoundError):  # moved before, or by another process
            objects.put(target, objects.fetch(source))
    objects.delete(sessions.key_of(import_id))


def _moves(session: Session, row: tables.Import) -> Iterator[tuple[str, str]]:
    run = session.get(tables.Run, row.run_id)
    if run is None:
        return
    work = f"runs/{job_specs.folder_of(run)}"
    ids = {(r.row_index, r.attempt): r.rollout_id for r in session.scalars(rollouts.listed(run.id))}
    known = set(ids.values())
    for file in sessions.files_of(session, row.id):
        if file.path == TOKENS:
            yield sessions.file_key(row.id, file.number), f"{work}/{TOKENS}"
        found = artifact_of(file.path)
        if found is None:
            continue
        rollout_id = ids.get(found.place) if found.place else found.rollout_id
        if rollout_id in known:
            target = f"{work}/artifacts/{rollout_id}/artifacts/{found.path}"
            yield sessions.file_key(row.id, file.number), target


def recover(platform: Platform) -> None:
    """At a start: forget uploads over their time, and finish what a crash interrupted."""
    with platform.db.write() as session:
        gone = sessions.expired(session)
        old = tables.Run.updated_at < utc_now() - ABANDONED_AFTER
        unseen = session.scalars(sa.select(tables.Run.id).where(tables.Run.kind == UNSEEN, old)).all()
    for run_id in unseen:
        _forget(platform, run_id)
    for import_id in gone:
        platform.objects.delete(sessions.key_of(import_id))
    work = platform.settings.located(IMPORTS)
    left = {path.name for path in work.iterdir()} if work.is_dir() else set()
    left |= {one.key.removeprefix(IMPORTS).partition("/")[0] for one in platform.objects.list(IMPORTS)}
    with platform.db.read() as session:
        uploading = sa.select(tables.Import.id).where(tables.Import.status == sessions.UPLOADING)
        waiting = set(session.scalars(uploading))
    for import_id in left:
        if import_id not in waiting:
            try:
                _settle(platform, import_id)
            except (OSError, OsmosisError):
                log.exception("cannot clean up after upload %s", import_id)
