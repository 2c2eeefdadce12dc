"""Sessions in which a local run is taken in: opened, filled, and turned into a finished run.

A session is found again by the digest of its manifest, so an interrupted upload goes on where it was. A local run
becomes one run here: another upload of it takes that run's place, and only when that is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.records.base import utc_now
from osmosis.records.contract.body import moment
from osmosis.records.contract.uploads import ImportFile, ImportSession
from osmosis.records.report import Report
from osmosis.records.run import RunStatus, Stage

from .. import tables
from ..services import links, runs
from ..settings import PlatformSettings
from .manifest import LocalRun, Manifest

LIFETIME = timedelta(days=7)
UPLOADING, FINALIZED, REPLACED = "uploading", "finalized", "replaced"


def open_session(session: Session, workspace: tables.Workspace, user: tables.User, manifest: Manifest) -> tables.Import:
    """The session of this manifest, made when there is none. Conflict when the run is here in another state."""
    manifest.check()
    known = _by_digest(session, workspace.id, manifest.manifest_digest)
    if known is not None:
        announced = {(file.path, file.size, file.sha256) for file in files_of(session, known.id)}
        if announced != {(file.path, file.size, file.sha256) for file in manifest.files}:
            raise Conflict("an upload with this digest was announced with other files", field="manifest_digest")
        if known.status == UPLOADING:
            known.reimport, known.expires_at = manifest.reimport, utc_now() + LIFETIME
        return known
    if not manifest.reimport:
        _refuse_second(session, workspace.id, manifest.local_run_id)
    row = tables.Import(
        id=tables.new_id(),
        workspace_id=workspace.id,
        creator_id=user.id,
        digest=manifest.manifest_digest,
        local_run_id=manifest.local_run_id,
        reimport=manifest.reimport,
        run=manifest.run.to_dict(),
        provenance=manifest.provenance or {},
        expires_at=utc_now() + LIFETIME,
    )
    session.add(row)
    session.flush()
    session.add_all(
        tables.ImportFile(import_id=row.id, number=number, path=file.path, size=file.size, sha256=file.sha256)
        for number, file in enumerate(manifest.files, 1)
    )
    session.flush()
    return row


def _by_digest(session: Session, workspace_id: str, digest: str) -> tables.Import | None:
    """One that is open, or whose run is still here."""
    usable = sa.or_(
        sa.and_(tables.Import.status == UPLOADING, tables.Import.expires_at > utc_now()),
        sa.and_(tables.Import.status == FINALIZED, tables.Import.run_id.is_not(None)),
    )
    query = sa.select(tables.Import).where(
        tables.Import.workspace_id == workspace_id, tables.Import.digest == digest, usable
    )
    return session.scalars(query.order_by(tables.Import.created_at.desc()).limit(1)).first()


def run_of(session: Session, workspace_id: str, local_run_id: str) -> tables.Run | None:
    """The run that an upload of this local run became, while it is here."""
    query = (
        sa.select(tables.Run)
        .join(tables.Import, tables.Import.run_id == tables.Run.id)
        .where(
            tables.Import.workspace_id == workspace_id,
            tables.Import.local_run_id == local_run_id,
            tables.Import.status == FINALIZED,
        )
    )
    return session.scalars(query.limit(1)).first()


def _refuse_second(session: Session, workspace_id: str, local_run_id: str) -> None:
    earlier = run_of(session, workspace_id, local_run_id)
    if earlier is not None:
        raise Conflict(
            f"this local run was uploaded before, as {earlier.name!r}, and has changed since",
            hint="put the new results in its place: osmosis eval upload NAME --replace",
            eval_run_id=earlier.id,
            eval_run_name=earlier.name,
        )


def find(session: Session, workspace: tables.Workspace, import_id: str) -> tables.Import:
    """NotFound unless it is a session of this workspace that is not over its time."""
    row = session.get(tables.Import, import_id)
    expired = row is not None and row.status == UPLOADING and row.expires_at <= utc_now()
    if row is None or row.workspace_id != workspace.id or expired:
        raise NotFound(f"there is no upload {import_id!r} any more", hint="upload the run again")
    return row


def files_of(session: Session, import_id: str) -> list[tables.ImportFile]:
    """In the order of the manifest."""
    query = sa.select(tables.ImportFile).where(tables.ImportFile.import_id == import_id)
    return list(session.scalars(query.order_by(tables.ImportFile.number)))


def files_at(session: Session, row: tables.Import, paths: Sequence[str]) -> list[tables.ImportFile]:
    """The announced files with these paths. ValidationError for one that was not announced, Conflict at the end."""
    if row.status != UPLOADING:
        raise Conflict(f"this upload is {row.status}")
    query = sa.select(tables.ImportFile).where(
        tables.ImportFile.import_id == row.id, tables.ImportFile.path.in_(list(paths))
    )
    found = {file.path: file for file in session.scalars(query)}
    if unknown := [path for path in paths if path not in found]:
        raise ValidationError(f"{unknown[0]!r} was not announced", field="paths")
    return [found[path] for path in paths]


def body(session: Session, settings: PlatformSettings, row: tables.Import) -> ImportSession:
    """A session as clients read it."""
    files = files_of(session, row.id)
    run = session.get(tables.Run, row.run_id) if row.run_id else None
    became: dict[str, str] = {}
    if run is not None:
        became = {"eval_run_id": run.id, "eval_run_name": run.name, "platform_url": links.run(settings, run.id)}
    return ImportSession(
        session_id=row.id,
        status=row.status,
        expected_files=len(files),
        uploaded_files=sum(file.uploaded for file in files),
        files=[file_body(file) for file in files],
        expires_at=moment(row.expires_at),
        **became,
    )


def file_body(file: tables.ImportFile) -> ImportFile:
    """An announced file as clients read it."""
    state = "uploaded" if file.uploaded else "pending"
    return ImportFile(path=file.path, size=file.size, sha256=file.sha256, state=state)


def expired(session: Session) -> list[str]:
    """Forget unfinished sessions over their time; whose files may go is the answer."""
    query = sa.select(tables.Import).where(tables.Import.status == UPLOADING, tables.Import.expires_at <= utc_now())
    rows = list(session.scalars(query))
    for row in rows:
        session.delete(row)
    return [row.id for row in rows]


# --- the run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reading:
    """What the files of a session said."""

    rows: list[int]
    report: Report


def become_run(session: Session, row: tables.Import, reading: Reading) -> tables.Run:
    """The finished run of a session, without its rollouts: new, or in the place of the earlier one."""
    local = LocalRun.model_validate(row.run)
    creator = session.get(tables.User, row.creator_id) if row.creator_id else None
    earlier = run_of(session, row.workspace_id, row.local_run_id)
    if earlier is not None and not row.reimport:
        _refuse_second(session, row.workspace_id, row.local_run_id)
    values = _values(session, row, local, reading)
    if earlier is None:
        name = _free_name(session, row.workspace_id, local.name)
        run = tables.Run(id=tables.new_id(), workspace_id=row.workspace_id, kind="eval", name=name, **values)
        session.add(run)
        before = None
    else:
        run, before = earlier, earlier.status
        _clear(session, run, values)
    session.flush()
    who = f" by {creator.name}" if creator else ""
    reason = f"uploaded{' again' if before else ''}{who} from a local run"
    session.add(tables.RunEvent(run_id=run.id, before=before, status=run.status, reason=reason))
    row.status, row.run_id = FINALIZED, run.id
    session.flush()
    return run


def _clear(session: Session, run: tables.Run, values: dict[str, object]) -> None:
    """Make room in a run that was uploaded before."""
    for table in (tables.Rollout, tables.RunLog):
        session.execute(sa.delete(table).where(table.run_id == run.id))
    older = sa.update(tables.Import).where(tables.Import.run_id == run.id)
    session.execute(older.values(status=REPLACED, run_id=None))
    run.retries += 1  # files of the earlier upload lie in the folder of the earlier one
    for key, value in values.items():
        setattr(run, key, value)


def _values(session: Session, row: tables.Import, local: LocalRun, reading: Reading) -> dict[str, object]:
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


def add_log(session: Session, run: tables.Run, lines: Iterable[str]) -> None:
    """Lines of the local run's own log, under the time at which that run began."""
    session.add_all(
        tables.RunLog(run_id=run.id, timestamp=run.started_at or utc_now(), step="local", message=runs.storable(line))
        for line in lines
    )
