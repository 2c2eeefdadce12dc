"""From uploaded parts to a checked dataset; no session is open while files are read, and a restart repeats work."""

import logging
import os
import shutil
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import orjson
import sqlalchemy as sa

from osmosis.base.files import replacing
from osmosis.base.jsonable import JsonObject
from osmosis.base.locks import lock_if_free, locked
from osmosis.datasets.scan import UploadFacts
from osmosis.errors import Conflict, DatasetError, NetworkError, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.datasets import service as datasets
from osmosis.platform.objects.parts import dataset_key, join_parts, list_parts, part_etag, upload_key
from osmosis.platform.workspaces import audit
from osmosis.records.base import utc_now
from osmosis.records.run.rows import MIN_ROWS, DatasetStatus
from osmosis.sandbox.process import read_with

log = logging.getLogger("osmosis.platform.ingest")

ABANDONED_AFTER = timedelta(days=1)
PREVIEW_ROWS = 20
MAX_ATTEMPTS = 3  # A file that crashes the platform is not read at every start
READ_S = 60.0
BYTES_PER_S = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Work:
    upload_id: str
    dataset_id: str
    name: str
    format: str
    size: int
    parts: int
    can_be_short: bool = False


def complete(
    platform: Platform, dataset_id: str, etags: dict[int, str] | None = None, *, upload_id: str | None = None
) -> None:
    """Finish an upload, a large one in the background. Raise DatasetError. A repeated call changes nothing."""
    work = _begin(platform, dataset_id, upload_id)
    if work is None:
        return
    if etags:
        parts = list_parts(platform.objects, upload_key(work.upload_id))
        for number, etag in etags.items():
            if number in parts and part_etag(platform.objects, parts[number]) != etag.strip('"'):
                _refuse(platform, work, [], f"part {number} was corrupted in transit")
                message = f"part {number} of {work.name!r} was corrupted in transit"
                raise DatasetError(message, hint="upload the file again")
    if work.size <= platform.settings.inline_bytes:
        with _ours(platform, work.upload_id):
            _finish(platform, work)
    else:
        _in_thread(platform, work)


def recover(platform: Platform) -> list[threading.Thread]:
    with platform.db.read() as session:
        query = sa.select(tables.Upload, tables.Dataset).join_from(tables.Upload, tables.Dataset)
        query = query.where(tables.Upload.status == "processing")
        interrupted = [(_work(upload, dataset), upload.attempts) for upload, dataset in session.execute(query)]
    again = []
    for work, attempts in interrupted:
        with _ours(platform, work.upload_id) as ours:
            if not ours:
                continue  # another process of this platform is at it
        if attempts >= MAX_ATTEMPTS:
            _refuse(platform, work, [], f"the platform ended {attempts} times while it read this file")
            platform.objects.delete(upload_key(work.upload_id))
            continue
        with platform.db.write() as session:
            session.get_one(tables.Upload, work.upload_id).attempts = attempts + 1
        again.append(_in_thread(platform, work))
    return again


def forget_abandoned(platform: Platform) -> int:
    with platform.db.write() as session:
        query = sa.select(tables.Upload).where(tables.Upload.status == "open")
        uploads = list(session.scalars(query.where(tables.Upload.created_at < utc_now() - ABANDONED_AFTER)))
        for upload in uploads:
            datasets.abandon(session, session.get_one(tables.Dataset, upload.dataset_id), upload)
    for upload in uploads:
        platform.objects.delete(upload_key(upload.id))
    return len(uploads)


def _ours(platform: Platform, upload_id: str) -> AbstractContextManager[bool]:
    return lock_if_free(platform.settings.data_dir / "locks" / f"upload-{upload_id}.lock")


def _in_thread(platform: Platform, work: Work) -> threading.Thread:
    thread = threading.Thread(target=_in_background, args=(platform, work), daemon=True, name="ingest")
    thread.start()
    return thread


def _work(upload: tables.Upload, dataset: tables.Dataset) -> Work:
    return Work(upload.id, dataset.id, dataset.name, upload.format, upload.size, upload.parts)


def _list_complete(platform: Platform, dataset_id: str) -> set[str]:
    with platform.db.read() as session:
        query = sa.select(tables.Upload).where(tables.Upload.dataset_id == dataset_id, tables.Upload.status == "open")
        uploads = list(session.scalars(query))
    return {upload.id for upload in uploads if len(list_parts(platform.objects, upload_key(upload.id))) >= upload.parts}


def _begin(platform: Platform, dataset_id: str, upload_id: str | None = None) -> Work | None:
    complete_ids = _list_complete(platform, dataset_id) if upload_id is None else set()
    with platform.db.write() as session:
        dataset = session.get_one(tables.Dataset, dataset_id, with_for_update=True)
        upload = datasets.find_upload(session, dataset, upload_id, complete_ids)
        if upload is None or upload.status in ("done", "processing"):
            return None
        if upload.status == "aborted":
            raise Conflict(f"the upload of {dataset.name!r} was abandoned", hint="upload the file again")
        if upload.status == "failed":
            query = sa.select(tables.DatasetLog).filter_by(dataset_id=dataset.id, level="error")
            query = query.where(tables.DatasetLog.timestamp >= upload.created_at)
            lines = list(session.scalars(query.order_by(tables.DatasetLog.id)))
            messages = [line.message for line in lines if not line.details]
            message = messages[0] if messages else f"dataset {dataset.name!r} was rejected"
            issues = [line.details for line in lines if line.details]
            raise DatasetError(message, hint="fix the file and upload it again", issues=issues)
        upload.status, upload.updated_at = "processing", utc_now()
        upload.attempts += 1
        if dataset.path is None:
            dataset.status, dataset.error, dataset.updated_at = DatasetStatus.PROCESSING.value, None, utc_now()
        return _work(upload, dataset)


def _in_background(platform: Platform, work: Work) -> None:
    try:
        with _ours(platform, work.upload_id) as ours:
            if ours:
                _finish(platform, work)
    except OsmosisError as error:
        log.info("dataset %s rejected: %s", work.name, error)
    except Exception:
        log.exception("dataset %s failed", work.name)


def _finish(platform: Platform, work: Work) -> None:
    objects, parts = platform.objects, upload_key(work.upload_id)
    key = f"{dataset_key(work.dataset_id)}{work.upload_id}.{work.format}"
    target = platform.settings.located(key)
    try:
        size, sha256 = join_parts(objects, parts, work.parts, target, announced=work.size)
        if size != work.size:
            message = f"{size} bytes arrived instead of the announced {work.size}"
            raise DatasetError(message, hint="upload the file again")
        facts = _check(target, size)
        if facts["found"] > (work.can_be_short and facts["rows"] < MIN_ROWS):
            issues, count = facts["issues"], facts["found"]
            more = f" (the first {len(issues)} are listed)" if count > len(issues) else ""
            message = f"dataset {work.name!r} has {count} problem{'s' if count != 1 else ''}{more}"
            hint = "fix the file and upload it again; check it before with: osmosis check FILE"
            raise DatasetError(message, hint=hint, issues=issues)
        objects.put(key, target)
    except NetworkError:  # of the object store: nothing is wrong with the file
        target.unlink(missing_ok=True)
        with platform.db.write() as session:
            upload = session.get(tables.Upload, work.upload_id)
            dataset = session.get(tables.Dataset, work.dataset_id)
            if upload is not None:
                upload.status, upload.updated_at = "open", utc_now()
            if dataset is not None and dataset.path is None:
                dataset.status, dataset.updated_at = DatasetStatus.UPLOADING.value, utc_now()
        raise
    except OsmosisError as error:
        target.unlink(missing_ok=True)
        objects.delete(parts)
        _refuse(platform, work, error.details.get("issues", []), error.message)
        raise
    except Exception:
        target.unlink(missing_ok=True)
        _refuse(platform, work, [], "internal error while reading the file")
        raise
    _take_over(platform, work, key, size, sha256, facts)
    objects.delete(parts)
    clean(platform, work.dataset_id)


def _check(path: Path, size: int) -> UploadFacts:
    options = {"path": str(path), "preview": PREVIEW_ROWS}
    command = ["-m", "osmosis.datasets.scan"]
    facts = read_with(command, options, what="this file", files=[path], seconds=READ_S + size / BYTES_PER_S)
    return cast(UploadFacts, facts)


def _refuse(platform: Platform, work: Work, issues: list[dict[str, str]], message: str) -> None:
    with platform.db.write() as session:
        upload = session.get(tables.Upload, work.upload_id)
        dataset = session.get(tables.Dataset, work.dataset_id)
        if upload is None or dataset is None:
            return
        upload.status, upload.updated_at = "failed", utc_now()
        datasets.log(session, dataset.id, "error", "validation", message)
        for issue in issues:
            datasets.log(session, dataset.id, "error", "validation", issue["message"], dict(issue))
        if dataset.path is None:
            dataset.status, dataset.error, dataset.updated_at = DatasetStatus.ERROR.value, message, utc_now()


def _take_over(platform: Platform, work: Work, key: str, size: int, sha256: str, facts: UploadFacts) -> None:
    with platform.db.write() as session:
        upload = session.get(tables.Upload, work.upload_id)
        dataset = session.get(tables.Dataset, work.dataset_id)
        if upload is None or dataset is None:  # deleted meanwhile, its files are nobody's
            return
        upload.status, upload.updated_at = "done", utc_now()
        dataset.status, dataset.error = DatasetStatus.UPLOADED.value, None
        dataset.path = key
        dataset.size, dataset.format = size, work.format
        dataset.row_count, dataset.sha256, dataset.preview = facts["rows"], sha256, facts["preview"]
        dataset.updated_at = utc_now()
        for warning in facts["warnings"]:
            datasets.log(session, dataset.id, "warning", "validation", str(warning["message"]), warning)
        datasets.log(session, dataset.id, "info", "validation", f"{facts['rows']} rows, {size} bytes, sha256 {sha256}")


def append_row(platform: Platform, workspace: tables.Workspace, actor: audit.Actor, name: str, row: JsonObject) -> str:
    """Add a row to a dataset of JSON lines, once, or begin one; return its id. Raise Conflict, DatasetError."""
    line = orjson.dumps(row) + b"\n"
    with locked(platform.settings.data_dir / "locks" / f"rows-{workspace.id}.lock"):
        with platform.db.read() as session:
            present = tables.Dataset.name == name, tables.Dataset.path.is_not(None)
            old = session.scalars(datasets.select_datasets(workspace).where(*present)).first()
        if old is not None and old.format != "jsonl":
            raise Conflict(f"dataset {name!r} is {old.format}: rows are added to JSON lines", hint="name another one")
        path = platform.objects.fetch(old.path) if old is not None and old.path else Path(os.devnull)
        with path.open("rb") as lines:
            last = b"\n"
            for last in lines:
                if old is not None and last.rstrip() == line.rstrip():
                    return old.id
        line = line if last.endswith(b"\n") else b"\n" + line
        with platform.db.write() as session:
            id_, size = (None, len(line)) if old is None else (old.id, old.size + len(line))
            file = datasets.NewFile(name, size, "jsonl")
            dataset, upload = datasets.create(session, workspace, actor.user, file, part_bytes=size, overwrite_id=id_)
            audit.note(session, actor, "dataset.upload", name, workspace=workspace, rows=1)
        part = platform.settings.located(f"{upload_key(upload.id)}1")
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(part) as out, path.open("rb") as lines:
            shutil.copyfileobj(lines, out)
            out.write(line)
        platform.objects.put(f"{upload_key(upload.id)}1", part)
        if (work := _begin(platform, dataset.id, upload.id)) is not None:
            _finish(platform, replace(work, can_be_short=True))
    return dataset.id


def clean(platform: Platform, dataset_id: str) -> None:
    keys = {item.key for item in platform.objects.list(dataset_key(dataset_id))}
    with platform.db.read() as session:
        unused = datasets.list_unused_files(session, dataset_id, keys)
    for key in unused:
        platform.objects.delete(key)
