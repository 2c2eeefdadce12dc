"""Upload sessions: opened by a manifest, and filled file by file. A session is found by the digest of its manifest, so
an interrupted upload resumes. Files come in parts and count once their hash is the announced one. Paths of a manifest
follow a closed list of shapes; a file is stored under its number, so no path from outside becomes one of ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables, urls
from osmosis.platform.objects.parts import IMPORTS, Parts, join_parts
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api.body import format_moment
from osmosis.records.api.datasets import ImportFile, ImportSession, UploadPlan
from osmosis.records.base import Record, utc_now
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.rows import MAX_BYTES

LIFETIME = timedelta(days=7)
UPLOADING, FINALIZED, REPLACED = "uploading", "finalized", "replaced"


def open_session(session: Session, workspace: tables.Workspace, user: tables.User, manifest: Manifest) -> tables.Import:
    """Return the session of this manifest, created if necessary; Conflict when the run is here in another state."""
    manifest.check()
    usable = sa.or_(
        sa.and_(tables.Import.status == UPLOADING, tables.Import.expires_at > utc_now()),
        sa.and_(tables.Import.status == FINALIZED, tables.Import.run_id.is_not(None)),
    )
    query = sa.select(tables.Import).where(
        tables.Import.workspace_id == workspace.id, tables.Import.digest == manifest.manifest_digest, usable
    )
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


def refuse_second(session: Session, workspace_id: str, local_run_id: str) -> None:
    earlier = find_run(session, workspace_id, local_run_id)
    if earlier is not None:
        raise Conflict(
            f"this local run was uploaded before, as {earlier.name!r}, and has changed since",
            hint="replace it: osmosis eval upload NAME --replace",
            eval_run_id=earlier.id,
            eval_run_name=earlier.name,
        )


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
    query = sa.select(tables.ImportFile).where(
        tables.ImportFile.import_id == row.id, tables.ImportFile.path.in_(list(paths))
    )
    files = {file.path: file for file in session.scalars(query)}
    if unknown := [path for path in paths if path not in files]:
        raise ValidationError(f"{unknown[0]!r} was not announced", field="paths")
    return [files[path] for path in paths]


def body(session: Session, settings: PlatformSettings, row: tables.Import) -> ImportSession:
    files = list_files(session, row.id)
    run = session.get(tables.Run, row.run_id) if row.run_id else None
    became: dict[str, str] = {}
    if run is not None:
        became = {"eval_run_id": run.id, "eval_run_name": run.name, "platform_url": urls.run(settings, run.id)}
    return ImportSession(
        session_id=row.id,
        status=row.status,
        expected_files=len(files),
        uploaded_files=sum(file.uploaded for file in files),
        files=[file_body(file) for file in files],
        expires_at=format_moment(row.expires_at),
        **became,
    )


def file_body(file: tables.ImportFile) -> ImportFile:
    state = "uploaded" if file.uploaded else "pending"
    return ImportFile(path=file.path, size=file.size, sha256=file.sha256, state=state)


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
    objects, parts = platform.objects, parts_key(file.import_id, file.number)
    key = file_key(file.import_id, file.number)
    target = platform.settings.located(key)
    if not file.uploaded:
        joined = join_parts(objects, parts, parts_of(platform, file).count, target, announced=file.size)
        if joined != (file.size, file.sha256):
            target.unlink(missing_ok=True)
            objects.delete(parts)
            message = f"{file.path} does not match the announced size or checksum"
            raise ValidationError(message, hint="upload it again", field="path")
        objects.put(key, target)
    with platform.db.write() as session:
        stored = session.get(tables.ImportFile, (file.import_id, file.number))
        if stored is not None:
            stored.uploaded = True
    objects.delete(parts)


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


SCHEMA = 1
MAX_FILES = 100_000
INDEX = "index.jsonl"
REPORT = "report.json"
LOGS = "logs.txt"
ANNOTATIONS = "annotations.jsonl"
TOKENS = "tokens.jsonl"
KNOWN = (INDEX, REPORT, LOGS, ANNOTATIONS, TOKENS, "progress.json", "metrics.json", "summary.jsonl")
TRAJECTORY = re.compile(r"^trajectories/[A-Za-z0-9._+-]{1,200}\.json\Z")
ARTIFACT = re.compile(r"^artifacts/row_(\d{1,9})_run_(\d{1,9})/(.{1,1000})\Z")
TRIAL = re.compile(r"^rollout_trials/([^/]{1,256})/(?:[A-Za-z0-9._+-]{1,200}\.json|artifacts/(.{1,1000}))\Z")
"""Files of one rollout under its id, as clients of generation 0.3 send them."""


class FileSpec(Record):
    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class ManifestRollout(Record):
    name: str = Field(min_length=1)
    source_digest: str | None = None
    branch: str | None = None
    commit_sha: str | None = None


class DatasetSource(Record):
    name: str = Field(min_length=1)
    sha256: str | None = None
    selected_source_rows: list[int] | int | None = None


class ManifestExperiment(Record):
    rollout: ManifestRollout
    entrypoint: str = ""
    model_path: str = Field(min_length=1)
    dataset: DatasetSource


class ManifestEvaluation(Record):
    n: int = Field(default=1, ge=1)
    pass_threshold: float = 1.0


class UploadedRun(Record):
    name: str = Field(min_length=1)
    started_at: datetime | None = None
    completed_at: datetime | None = None
    experiment_config: ManifestExperiment
    evaluation_config: ManifestEvaluation = Field(default_factory=ManifestEvaluation)


class Manifest(Record):
    schema_version: int = SCHEMA
    local_run_id: str = Field(min_length=1, max_length=200)
    manifest_digest: str = Field(min_length=1, max_length=200)
    run: UploadedRun
    provenance: dict[str, object] | None = None
    files: list[FileSpec]
    reimport: bool = False

    def check(self) -> None:
        if self.schema_version != SCHEMA:
            message = f"this platform accepts runs of schema {SCHEMA}, not {self.schema_version}"
            raise ValidationError(message, field="schema_version")
        paths = [file.path for file in self.files]
        if INDEX not in paths:
            raise ValidationError(f"the run has no {INDEX}", field="files")
        if len(set(paths)) != len(paths):
            raise ValidationError("a path is listed twice", field="files")
        if wrong := [path for path in paths if not is_allowed_path(path)]:
            issues = [{"key": "files", "message": f"{path!r} is not a file of a run"} for path in wrong[:5]]
            raise ValidationError(f"{len(wrong)} paths are not allowed, the first is {wrong[0]!r}", issues=issues)
        if len(paths) > MAX_FILES or sum(file.size for file in self.files) > MAX_BYTES:
            raise ValidationError(f"a run can have at most {MAX_FILES} files and {MAX_BYTES // 1024**3} GiB in all")


@dataclass(frozen=True, slots=True)
class Artifact:
    place: tuple[int, int] | None
    rollout_id: str | None
    path: str


def parse_artifact(path: str) -> Artifact | None:
    if match := ARTIFACT.match(path):
        artifact = Artifact((int(match[1]), int(match[2])), None, match[3])
    elif (match := TRIAL.match(path)) and match[2] is not None and _is_id(match[1]):
        artifact = Artifact(None, match[1], match[2])
    else:
        return None
    parts = artifact.path.split("/")
    safe = "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)
    return artifact if safe and all(len(part.encode()) <= 255 for part in parts) else None


def trajectory_paths(rollout_id: str, filename: str) -> tuple[str, ...]:
    name = filename.rpartition("/")[2]
    return f"rollout_trials/{rollout_id}/{name}", f"trajectories/{name}"


def is_allowed_path(path: str) -> bool:
    if path in KNOWN or TRAJECTORY.match(path):
        return True
    match = TRIAL.match(path)
    return parse_artifact(path) is not None if match is None or match[2] is not None else _is_id(match[1])


def _is_id(text: str) -> bool:
    try:
        return bool(check_rollout_id(text))
    except ValueError:
        return False
