"""Datasets; a new version is a new file, and the old one stays while a run may need it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.datasets.row_file import RowPart, read_row_file
from osmosis.errors import Conflict, NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.objects.parts import Parts, upload_key
from osmosis.platform.objects.store import Objects
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.workspaces import quotas
from osmosis.records.api.datasets import DatasetEntry, UploadPlan
from osmosis.records.base import utc_now
from osmosis.records.run.rows import FORMATS, MAX_BYTES, DatasetStatus, Row
from osmosis.records.run.status import RunStatus
from osmosis.sandbox.process import read_with

MAX_NAME = 128
GONE = (DatasetStatus.ERROR.value, DatasetStatus.CANCELLED.value)


@dataclass(frozen=True, slots=True)
class NewFile:
    name: str
    size: int
    format: str


def create(
    session: Session,
    workspace: tables.Workspace,
    user: tables.User,
    file: NewFile,
    *,
    part_bytes: int,
    overwrite_id: str | None = None,
) -> tuple[tables.Dataset, tables.Upload]:
    """Create a dataset that waits for its file; raise Conflict with `existing_dataset_id` if the name is in use."""
    issues, name = [], file.name
    if not name.strip() or len(name) > MAX_NAME or any(c in "/\\" or not c.isprintable() for c in name):
        message = f"must be a file name without suffix, of at most {MAX_NAME} characters"
        issues.append({"key": "file_name", "message": message})
    if file.format not in FORMATS:
        issues.append({"key": "extension", "message": f"must be one of {', '.join(FORMATS)}"})
    if not 0 < file.size <= MAX_BYTES:
        issues.append({"key": "file_size", "message": "must be more than 0 and at most 5 GB"})
    if issues:
        raise ValidationError("this file cannot be used as a dataset", issues=issues)
    dataset = _to_fill(session, workspace, file.name, overwrite_id)
    quotas.check_dataset(session, workspace, file.size, new=dataset is None)
    if dataset is None:
        dataset = tables.Dataset(workspace_id=workspace.id, creator_id=user.id, name=file.name)
        session.add(dataset)
    if dataset.path is None:
        dataset.status = DatasetStatus.UPLOADING.value
        dataset.size, dataset.format, dataset.error = file.size, file.format, None
    dataset.updated_at = utc_now()
    session.flush()
    parts = Parts.of(file.size, part_bytes)
    upload = tables.Upload(dataset_id=dataset.id, format=file.format, size=file.size)
    upload.part_size, upload.parts = parts.each, parts.count
    session.add(upload)
    session.flush()
    return dataset, upload


def _to_fill(
    session: Session, workspace: tables.Workspace, name: str, overwrite_id: str | None
) -> tables.Dataset | None:
    query = sa.select(tables.Dataset).where(tables.Dataset.workspace_id == workspace.id, tables.Dataset.name == name)
    taken_by = session.scalars(query).first()
    if overwrite_id is None:
        if taken_by is not None and taken_by.status not in GONE:
            hint = "replace it with --overwrite, or rename the file"
            raise Conflict(f"a dataset named {name!r} already exists", hint=hint, existing_dataset_id=taken_by.id)
        return taken_by
    dataset = find(session, workspace, overwrite_id)
    if taken_by is not None and taken_by.id != dataset.id:
        raise Conflict(f"a dataset named {name!r} already exists", existing_dataset_id=taken_by.id)
    if dataset.name != name:
        message = f"dataset {dataset.name!r} cannot be overwritten by a file named {name!r}"
        raise ValidationError(message, field="overwrite_dataset_id")
    return dataset


def find(session: Session, workspace: tables.Workspace, name_or_id: str) -> tables.Dataset:
    for column in (tables.Dataset.name, tables.Dataset.id):
        query = sa.select(tables.Dataset).where(tables.Dataset.workspace_id == workspace.id, column == name_or_id)
        if (dataset := session.scalars(query).first()) is not None:
            return dataset
    raise NotFound(f"no dataset named {name_or_id!r} in workspace {workspace.name!r}", hint="osmosis dataset list")


def select_datasets(workspace: tables.Workspace) -> sa.Select[tables.Dataset]:
    query = sa.select(tables.Dataset).where(tables.Dataset.workspace_id == workspace.id)
    return query.order_by(tables.Dataset.created_at.desc(), tables.Dataset.id)


def latest_upload(session: Session, dataset: tables.Dataset) -> tables.Upload:
    query = sa.select(tables.Upload).filter_by(dataset_id=dataset.id).order_by(tables.Upload.created_at.desc()).limit(1)
    upload = session.scalars(query).first()
    if upload is None:
        raise NotFound(f"no upload of dataset {dataset.name!r} is in progress")
    return upload


def find_upload(
    session: Session, dataset: tables.Dataset, upload_id: str | None, complete_ids: Collection[str]
) -> tables.Upload | None:
    """Return the upload to complete, not one that somebody else still sends; None if it is done."""
    if upload_id is not None:
        return _named_upload(session, dataset, upload_id)
    newest_first = sa.select(tables.Upload).where(tables.Upload.dataset_id == dataset.id)
    uploads = list(session.scalars(newest_first.order_by(tables.Upload.created_at.desc())))
    for upload in reversed(uploads):
        if upload.status == "open" and upload.id in complete_ids:
            return upload
    latest = latest_upload(session, dataset)
    others = [upload for upload in uploads if upload.status in ("done", "processing")]
    if latest.status == "open" and any(upload.updated_at >= latest.created_at for upload in others):
        return None
    return latest


def _named_upload(session: Session, dataset: tables.Dataset, upload_id: str) -> tables.Upload:
    upload = session.get(tables.Upload, upload_id)
    if upload is None or upload.dataset_id != dataset.id:
        raise NotFound(f"dataset {dataset.name!r} has no upload {upload_id}", field="upload_id")
    return upload


def abort(session: Session, dataset: tables.Dataset, upload_id: str | None = None) -> str | None:
    """Abort an upload (None: the latest) and return its id; None if it is not open."""
    upload = _named_upload(session, dataset, upload_id) if upload_id else latest_upload(session, dataset)
    if upload.status != "open":
        return None
    abandon(session, dataset, upload)
    return upload.id


def abandon(session: Session, dataset: tables.Dataset, upload: tables.Upload) -> None:
    """Abort an upload; a dataset without a file is cancelled unless another upload is in progress."""
    upload.status = "aborted"
    if dataset.path is None and latest_upload(session, dataset).id == upload.id:
        dataset.status = DatasetStatus.CANCELLED.value
        dataset.updated_at = utc_now()
    log(session, dataset.id, "warning", "upload", "the upload was abandoned")


def delete(session: Session, dataset: tables.Dataset) -> None:
    open_states = (RunStatus.PENDING.value, RunStatus.RUNNING.value)
    runs = session.scalars(sa.select(tables.Run).where(tables.Run.status.in_(open_states)))
    if name := next((run.name for run in runs for part in run.parts if part["dataset_id"] == dataset.id), None):
        raise Conflict(f"dataset {dataset.name!r} is in use by run {name!r}", hint="wait for the run, or stop it first")
    session.delete(dataset)


def list_unused_files(session: Session, dataset_id: str, keys: Collection[str]) -> set[str]:
    dataset = session.get(tables.Dataset, dataset_id)
    files = set(keys) - ({dataset.path} if dataset else set())
    if not files:
        return set()
    used = set(session.scalars(sa.select(tables.Run.dataset_path).where(tables.Run.dataset_path.in_(files))))
    for mixture in session.scalars(sa.select(tables.Run.environments).where(tables.Run.environments.is_not(None))):
        used |= {part["path"] for part in mixture or ()}
    arriving = set(session.scalars(sa.select(tables.Upload.id).filter_by(dataset_id=dataset_id, status="processing")))
    return {key for key in files - used if PurePosixPath(key).stem not in arriving}


def log(
    session: Session, dataset_id: str, level: str, step: str, message: str, details: dict[str, object] | None = None
) -> None:
    session.add(tables.DatasetLog(dataset_id=dataset_id, level=level, step=step, message=message, details=details))


EntryT = TypeVar("EntryT", bound=DatasetEntry)


def build_entry(kind: type[EntryT], settings: PlatformSettings, dataset: tables.Dataset, **more: object) -> EntryT:
    return kind.from_row(
        dataset,
        file_name=dataset.name,
        file_size=dataset.size,
        data_preview=dataset.preview or [],
        file_format=dataset.format,
        original_file_format=dataset.format,
        original_file_size=dataset.size,
        platform_url=settings.dataset_url(dataset.id),
        **more,
    )


def build_upload_plan(platform: Platform, upload: tables.Upload) -> UploadPlan:
    path = f"uploads/{upload.id}"
    plan = Parts(upload.size, upload.part_size).plan(platform, upload_key(upload.id), path)
    return plan.model_copy(update={"s3_key": path, "upload_id": upload.id})


BYTES_PER_S = 1_000_000
READ_S = 60.0


def iterate_rows(objects: Objects, parts: Sequence[RowPart]) -> Iterator[Row]:
    """Yield rows of stored datasets. Raise OsmosisError if they cannot be read."""
    with TemporaryDirectory(prefix="osmosis-rows-") as folder:
        yield from read_row_file(make_row_file(objects, parts, Path(folder)))


def make_row_file(objects: Objects, parts: Sequence[RowPart], folder: Path, stored: Sequence[str] = ()) -> Path:
    """Write a file of rows of stored datasets, which a process of its own reads. Raise OsmosisError if it cannot."""
    files, target = [objects.fetch(path) for path, *_ in parts], folder / "rows"
    named = [
        (str(file), start, prefix, list(rows)) for file, (_, start, prefix, rows) in zip(files, parts, strict=True)
    ]
    request = {"parts": named, "target": str(target), "stored": stored}
    seconds = READ_S + sum(file.stat().st_size for file in files) / BYTES_PER_S
    program = ["-m", "osmosis.datasets.row_file"]
    read_with(program, request, what="the dataset", files=files, write=[folder], seconds=seconds)
    return target
