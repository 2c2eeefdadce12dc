"""Make a finished run of the files of a local run, which a separate process reads. Rollouts are stored in batches under
a run that nobody sees yet; what a crash leaves is removed or finished at a later start."""

import contextlib
import itertools
import logging
import re
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import orjson
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis.base.jsonable import JsonObject
from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.auth.tokens import new_token
from osmosis.platform.db import changed_by, take_turn
from osmosis.platform.objects.parts import IMPORTS
from osmosis.platform.objects.store import remove
from osmosis.platform.run_upload import sessions
from osmosis.platform.run_upload.run_files import LOGS, TOKENS, UploadedRun, parse_artifact
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.records.base import utc_now
from osmosis.records.run.annotations import ANNOTATIONS, Annotation
from osmosis.records.run.job import Stage
from osmosis.records.run.report import Report
from osmosis.records.run.status import RunStatus
from osmosis.sandbox.process import read_with

log = logging.getLogger(__name__)

BATCH = 200
UNSEEN = "import"  # The kind of a run whose rollouts are still being stored: no list and no name finds it
ABANDONED_AFTER = timedelta(hours=6)
READ_S = 60.0
BYTES_PER_S = 2 * 1024 * 1024  # A reading of an upload may take `READ_S` and one second for each of these many bytes
READ_MEMORY_MB = 2048
LOG_LINES = 5000
NAME_TRIES = 20


@dataclass(frozen=True, slots=True)
class UploadContent:
    rows: list[int]
    report: Report


def finalize(platform: Platform, import_id: str) -> None:
    with platform.db.read() as session:
        row = session.get_one(tables.Import, import_id)
        files = sessions.list_files(session, import_id)
    if row.status == sessions.UPLOADING:
        pending = [file.path for file in files if not file.uploaded]
        if pending:
            raise Conflict(f"{len(pending)} files are missing, the first is {pending[0]}", hint="upload the run again")
        keys = {file.path: sessions.file_key(row.id, file.number) for file in files}
        files_here = {path: platform.objects.fetch(key) for path, key in keys.items()}
        draft = sessions.session_folder(platform, row.id) / f"draft.{new_token('')[:12]}" / "rollouts.jsonl"
        try:
            reading = _read(row, files, files_here, platform, draft)
            run_id, annotations = _stage(platform, row, reading, draft), draft.with_name(ANNOTATIONS)
            staged = _Staged(run_id, reading, annotations, files_here.get(LOGS))
            try:
                _show(platform, row.id, staged)
            finally:
                _forget(platform, staged.run_id)  # unless it is seen now
        finally:
            remove(draft.parent)
    _settle(platform, import_id)


@dataclass(frozen=True, slots=True)
class _Staged:
    run_id: str
    reading: UploadContent
    annotations: Path
    log: Path | None


def _stage(platform: Platform, row: tables.Import, reading: UploadContent, draft: Path) -> str:
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
                row = session.get_one(tables.Import, import_id, with_for_update=True)
                if row.status == sessions.UPLOADING:  # else another request was faster
                    run = _become_run(session, row, staged)
                    with staged.annotations.open("rb") as lines:
                        rollouts.merge_annotations(
                            session, run.id, map(Annotation.model_validate_json, lines), row.creator
                        )
                    _add_log(session, run, staged.log)
            return
        except IntegrityError:  # another run took the name in that moment
            if attempt == NAME_TRIES:
                raise Conflict("too many uploads at the same time", hint="upload the run again") from None


def _forget(platform: Platform, staged: str) -> None:
    unseen = sa.select(tables.Run.id).where(tables.Run.id == staged, tables.Run.kind == UNSEEN)
    some = sa.select(tables.Rollout.id).where(tables.Rollout.run_id.in_(unseen)).limit(BATCH)
    removed = BATCH
    while removed:
        with platform.db.write() as session:
            removed = changed_by(session, sa.delete(tables.Rollout).where(tables.Rollout.id.in_(some)))
    with platform.db.write() as session:
        session.execute(sa.delete(tables.Run).where(tables.Run.id.in_(unseen)))


def _read(
    row: tables.Import, files: list[tables.ImportFile], paths: Mapping[str, Path], platform: Platform, draft: Path
) -> UploadContent:
    folder = sessions.session_folder(platform, row.id)
    where = {path: str(file) for path, file in paths.items()}
    size = sum(file.size for file in files)
    draft.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    answer = read_with(
        ["-m", "osmosis.platform.run_upload.run_files"],
        {"files": where, "run": row.run, "draft": str(draft), "annotations": str(draft.with_name(ANNOTATIONS))},
        what="this run",
        files=[folder],
        write=[draft.parent],
        seconds=READ_S + size / BYTES_PER_S,
        memory_mb=READ_MEMORY_MB,
    )
    values: JsonObject = answer if isinstance(answer, dict) else {}
    return UploadContent(values["rows"], Report.model_validate(values["report"]))


def _become_run(session: Session, row: tables.Import, staged: _Staged) -> tables.Run:
    local = UploadedRun.model_validate(row.run)
    earlier = sessions.find_run(session, row.workspace_id, row.local_run_id)
    if earlier is not None and not row.reimport:
        sessions.refuse_second(session, row.workspace_id, row.local_run_id)
    if earlier is None:
        run, before = session.get_one(tables.Run, staged.run_id), None
        take_turn(session, f"run names of {row.workspace_id}")
        stem = re.sub(r"[^A-Za-z0-9._-]+", "-", local.name).strip("-.")[:90] or "run"
        query = sa.select(tables.Run.name).where(tables.Run.workspace_id == row.workspace_id, tables.Run.kind != UNSEEN)
        names = set(session.scalars(query.where(tables.Run.name.startswith(stem))))
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}-{number}", number + 1
        run.kind, run.name = "eval", name
        run.created_at = utc_now()
    else:
        run, before = earlier, earlier.status
        values = _values(session, row, local, staged.reading)
        for table in (tables.Rollout, tables.RunLog):
            session.execute(sa.delete(table).where(table.run_id == run.id))
        older = sa.update(tables.Import).where(tables.Import.run_id == run.id)
        session.execute(older.values(status=sessions.REPLACED, run_id=None))
        run.retries += 1  # files of the earlier upload lie in the folder of the earlier one
        for key, value in values.items():
            setattr(run, key, value)
        theirs = sa.update(tables.Rollout).where(tables.Rollout.run_id == staged.run_id)
        session.execute(theirs.values(run_id=run.id))
    session.flush()
    by_whom = f" by {row.creator.name}" if row.creator else ""
    reason = f"uploaded{' again' if before else ''}{by_whom} from a local run"
    session.add(tables.RunEvent(run_id=run.id, before=before, status=run.status, reason=reason))
    row.status, row.run_id = sessions.FINALIZED, run.id
    session.flush()
    return run


def _values(session: Session, row: tables.Import, local: UploadedRun, reading: UploadContent) -> dict[str, object]:
    experiment, source = local.experiment_config, local.experiment_config.rollout
    query = sa.select(tables.Dataset).filter_by(workspace_id=row.workspace_id, sha256=experiment.dataset.sha256 or "-")
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


def _add_log(session: Session, run: tables.Run, path: Path | None) -> None:
    if path is None:
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip("\n") for line in deque(file, LOG_LINES)]
    session.add_all(
        tables.RunLog(
            run_id=run.id, timestamp=run.started_at or utc_now(), step="local", message=lifecycle.clean_message(line)
        )
        for line in lines
    )


def _settle(platform: Platform, import_id: str) -> None:
    objects = platform.objects
    with platform.db.read() as session:
        row = session.get(tables.Import, import_id)
        moves = list(_moves(session, row)) if row is not None and row.run_id else []
    for source, target in moves:
        with contextlib.suppress(NotFound, FileNotFoundError):  # moved before, or by another process
            objects.put(target, objects.fetch(source))
    objects.delete(sessions.session_key(import_id))


def _moves(session: Session, row: tables.Import) -> Iterator[tuple[str, str]]:
    run = session.get(tables.Run, row.run_id)
    if run is None:
        return
    work = f"runs/{lifecycle.work_folder(run)}"
    ids = {(r.row_index, r.attempt): r.rollout_id for r in session.scalars(rollouts.select_rollouts(run.id))}
    rollout_ids = set(ids.values())
    for file in sessions.list_files(session, row.id):
        if file.path == TOKENS:
            yield sessions.file_key(row.id, file.number), f"{work}/{TOKENS}"
        artifact = parse_artifact(file.path)
        if artifact is None:
            continue
        rollout_id = ids.get(artifact.place) if artifact.place else artifact.rollout_id
        if rollout_id in rollout_ids:
            target = f"{work}/artifacts/{rollout_id}/artifacts/{artifact.path}"
            yield sessions.file_key(row.id, file.number), target


def recover(platform: Platform) -> None:
    with platform.db.write() as session:
        expired_ids = sessions.expired(session)
        old = tables.Run.updated_at < utc_now() - ABANDONED_AFTER
        unseen = session.scalars(sa.select(tables.Run.id).where(tables.Run.kind == UNSEEN, old)).all()
    for run_id in unseen:
        _forget(platform, run_id)
    for import_id in expired_ids:
        platform.objects.delete(sessions.session_key(import_id))
    work = platform.settings.located(IMPORTS)
    left = {path.name for path in work.iterdir()} if work.is_dir() else set()
    left |= {stored.key.removeprefix(IMPORTS).partition("/")[0] for stored in platform.objects.list(IMPORTS)}
    with platform.db.read() as session:
        uploading = sa.select(tables.Import.id).where(tables.Import.status == sessions.UPLOADING)
        waiting = set(session.scalars(uploading))
    for import_id in left:
        if import_id not in waiting:
            try:
                _settle(platform, import_id)
            except (OSError, OsmosisError):
                log.exception("cannot clean up after upload %s", import_id)
