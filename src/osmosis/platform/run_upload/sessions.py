"""Upload sessions, found by the digest of a manifest; no path from outside becomes one of ours."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.objects.parts import IMPORTS, Parts, store_joined
from osmosis.platform.run_upload.run_files import Manifest
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api.body import format_moment
from osmosis.records.api.datasets import ImportFile, ImportSession, UploadPlan
from osmosis.records.base import utc_now

LIFETIME = timedelta(days=7)
UPLOADING, FINALIZED, REPLACED = "uploading", "finalized", "replaced"


def open_session(session: Session, workspace: tables.Workspace, user: tables.User, manifest: Manifest) -> tables.Import:
    """Return the session of this manifest, created if necessary; Conflict when the run is here in another state."""
    manifest.check()
    is_open = sa.and_(tables.Import.status == UPLOADING, tables.Import.expires_at > utc_now())
    usable = sa.or_(is_open, sa.and_(tables.Import.status == FINALIZED, tables.Import.run_id.is_not(None)))
    query = sa.select(tables.Import).filter_by(workspace_id=workspace.id, digest=manifest.manifest_digest).where(usable)
    existing = session.scalars(query.order_by(tables.Import.created_at.desc()).limit(1)).first()
    if existing is not None:
        announced = {(file.path, file.size, file.sha256) for file in list_files(session, existing.id)}
        same = announced == {(file.path, file.size, file.sha256) for file in manifest.files}
        if existing.status == UPLOADING:
            if same:
                existing.reimport, existing.expires_at = manifest.reimport, utc_now() + LIFETIME
                return existing
            existing.expires_at = utc_now()  # its logs have grown since: this one is never finished
        elif same or not manifest.reimport:
            return existing  # the same rollouts, perhaps with longer logs
    if not manifest.reimport:
        refuse_second(session, workspace.id, manifest.local_run_id)
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


def find_run(session: Session, workspace_id: str, local_run_id: str) -> tables.Run | None:
    same = tables.Import.workspace_id == workspace_id, tables.Import.local_run_id == local_run_id
    query = sa.select(tables.Run).join(tables.Import).where(*same, tables.Import.status == FINALIZED)
    return session.scalars(query.limit(1)).first()


def refuse_second(session: Session, workspace_id: str, local_run_id: str) -> None:
    earlier = find_run(session, workspace_id, local_run_id)
    if earlier is not None:
        message = f"this local run was uploaded before, as {earlier.name!r}, and has changed since"
        hint = "replace it: osmosis eval upload NAME --replace"
        raise Conflict(message, hint=hint, eval_run_id=earlier.id, eval_run_name=earlier.name)


def find(session: Session, workspace: tables.Workspace, import_id: str) -> tables.Import:
    row = session.get(tables.Import, import_id)
    expired = row is not None and row.status == UPLOADING and row.expires_at <= utc_now()
    if row is None or row.workspace_id != workspace.id or expired:
        raise NotFound(f"upload {import_id!r} no longer exists", hint="upload the run again")
    return row


def list_files(session: Session, import_id: str) -> list[tables.ImportFile]:
    query = sa.select(tables.ImportFile).where(tables.ImportFile.import_id == import_id)
    return list(session.scalars(query.order_by(tables.ImportFile.number)))


def get_files(session: Session, row: tables.Import, paths: Sequence[str]) -> list[tables.ImportFile]:
    if row.status != UPLOADING:
        raise Conflict(f"this upload is {row.status}")
    query = sa.select(tables.ImportFile).filter_by(import_id=row.id).where(tables.ImportFile.path.in_(list(paths)))
    files = {file.path: file for file in session.scalars(query)}
    if unknown := [path for path in paths if path not in files]:
        raise ValidationError(f"{unknown[0]!r} was not announced", field="paths")
    return [files[path] for path in paths]


def body(session: Session, settings: PlatformSettings, row: tables.Import) -> ImportSession:
    files = list_files(session, row.id)
    run = session.get(tables.Run, row.run_id) if row.run_id else None
    became: dict[str, str] = {}
    if run is not None:
        became = {"eval_run_id": run.id, "eval_run_name": run.name, "platform_url": settings.run_url(run.id)}
    return ImportSession(
        session_id=row.id,
        status=row.status,
        expected_files=len(files),
        uploaded_files=sum(file.uploaded for file in files),
        files=[ImportFile.from_row(file, state="uploaded" if file.uploaded else "pending") for file in files],
        expires_at=format_moment(row.expires_at),
        **became,
    )


def expired(session: Session) -> list[str]:
    query = sa.select(tables.Import).where(tables.Import.status == UPLOADING, tables.Import.expires_at <= utc_now())
    rows = list(session.scalars(query))
    for row in rows:
        session.delete(row)
    return [row.id for row in rows]


def session_key(import_id: str) -> str:
    return f"{IMPORTS}{import_id}/"


def session_folder(platform: Platform, import_id: str) -> Path:
    return platform.settings.located(session_key(import_id).rstrip("/"))


def parts_key(import_id: str, number: int) -> str:
    return f"{session_key(import_id)}parts/{number}/"


def file_key(import_id: str, number: int) -> str:
    return f"{session_key(import_id)}files/{number}"


def parts_of(platform: Platform, file: tables.ImportFile) -> Parts:
    return Parts.of(file.size, platform.settings.part_bytes)


def receive(platform: Platform, file: tables.ImportFile) -> None:
    parts, key = parts_key(file.import_id, file.number), file_key(file.import_id, file.number)
    if not file.uploaded:
        whole, hint = parts_of(platform, file), "upload it again"
        store_joined(platform, whole, parts, key, path=file.path, sha256=file.sha256, hint=hint)
    with platform.db.write() as session:
        stored = session.get(tables.ImportFile, (file.import_id, file.number))
        if stored is not None:
            stored.uploaded = True
    platform.objects.delete(parts)


def upload_plan(platform: Platform, file: tables.ImportFile) -> UploadPlan:
    path, key = f"imports/{file.import_id}/{file.number}", parts_key(file.import_id, file.number)
    return parts_of(platform, file).plan(platform, key, path)


def get_awaited_file(platform: Platform, import_id: str, number: int) -> tables.ImportFile:
    with platform.db.read() as session:
        row = session.get(tables.Import, import_id)
        file = session.get(tables.ImportFile, (import_id, number))
    if row is None or file is None:
        raise NotFound("this upload no longer exists", hint="upload the run again")
    if row.status != UPLOADING or file.uploaded:
        raise Conflict(f"{file.path} was already uploaded")
    return file
