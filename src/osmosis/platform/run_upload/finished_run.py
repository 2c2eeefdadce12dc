"""From the files of a local run to a finished run: received in parts, checked by their hash, read, taken over.

Three phases, so that files are read and judged before a writer's session is open: load, read into one draft of
rollouts, store all of it in one transaction. What a crash leaves between that and the last rename is done at the
next start. Refuses whatever differs from what was announced.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from pydantic import ValidationError as PydanticError
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, OsmosisError, ValidationError
from osmosis.metrics.summary import Summary, Terms
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout

from .. import Platform, objects, tables
from ..security.tokens import new_token
from ..services import rollouts
from . import sessions
from .manifest import ARTIFACT, LOGS, REPORT, LocalRun
from .trajectories import Find, read_all

log = logging.getLogger("osmosis.platform.imports")

BATCH = 200
LOG_LINES = 5000
"""The last lines of a local run's log are kept."""
NAME_TRIES = 20


def folder_of(platform: Platform, import_id: str) -> Path:
    return platform.settings.objects_dir / "imports" / import_id


def part_dir(platform: Platform, import_id: str, number: int) -> Path:
    """Where the parts of one file arrive."""
    return folder_of(platform, import_id) / "parts" / str(number)


def _file(platform: Platform, import_id: str, number: int) -> Path:
    return folder_of(platform, import_id) / "files" / str(number)


def part_size(platform: Platform, size: int) -> int:
    """Bytes per part; 0 for a file that is sent in one piece."""
    return platform.settings.part_bytes if size > 2 * platform.settings.part_bytes else 0


def part_count(platform: Platform, size: int) -> int:
    each = part_size(platform, size)
    return max(1, -(-size // each)) if each else 1


def receive(platform: Platform, file: tables.ImportFile) -> None:
    """Put a file's parts together. ValidationError when it is not what was announced; said twice, it is the same."""
    target = _file(platform, file.import_id, file.number)
    parts = part_dir(platform, file.import_id, file.number)
    if not file.uploaded:
        found = objects.join_parts(parts, part_count(platform, file.size), target)
        if found != (file.size, file.sha256):
            target.unlink(missing_ok=True)
            objects.remove_tree(parts)
            raise ValidationError(f"{file.path} did not arrive as announced", hint="send it again", field="path")
    with platform.db.write() as session:
        stored = session.get(tables.ImportFile, (file.import_id, file.number))
        if stored is not None:
            stored.uploaded = True
    objects.remove_tree(parts)


def finalize(platform: Platform, import_id: str) -> None:
    """Make the run. Conflict while files are missing; ValidationError when they contradict each other."""
    with platform.db.read() as session:
        row = session.get_one(tables.Import, import_id)
        files = sessions.files_of(session, import_id)
    if row.status == sessions.UPLOADING:
        pending = [file.path for file in files if not file.uploaded]
        if pending:
            raise Conflict(f"{len(pending)} files have not arrived, first {pending[0]}", hint="upload the run again")
        _take_in(platform, row, files)
    _settle(platform, import_id)


def _take_in(platform: Platform, row: tables.Import, files: list[tables.ImportFile]) -> None:
    numbers = {file.path: file.number for file in files}

    def find(path: str) -> Path | None:
        return _file(platform, row.id, numbers[path]) if path in numbers else None

    draft = folder_of(platform, row.id) / f"rollouts.{new_token('')[:12]}"
    try:
        reading = _read(row, find, draft)
        for attempt in itertools.count(1):
            try:
                with platform.db.write() as session:
                    _store(session, row.id, reading, draft, find(LOGS))
                return
            except IntegrityError:  # another run took the name in that moment
                if attempt == NAME_TRIES:
                    raise Conflict("too many uploads at the same moment", hint="upload the run again") from None
    finally:
        draft.unlink(missing_ok=True)


def _read(row: tables.Import, find: Find, draft: Path) -> sessions.Reading:
    """Every rollout, checked, one line each in `draft`; the report that came along, or one made from them."""
    local = LocalRun.model_validate(row.run)
    evaluation = local.evaluation_config
    summary = Summary(Terms(evaluation.n, evaluation.pass_threshold))
    seen: set[int] = set()
    spent_ms = 0.0
    with draft.open("wb") as out:
        for rollout in read_all(find):
            summary.add(rollout)
            seen.add(rollout.row_index)
            spent_ms += rollout.duration_ms
            out.write(rollout.to_line())
    selected = local.experiment_config.dataset.selected_source_rows
    rows = sorted(set(selected) | seen if isinstance(selected, list) else seen)
    report = _given_report(find(REPORT)) or summary.report(rows=len(rows), duration_ms=spent_ms)
    if report.completed != summary.completed:
        raise ValidationError(f"{REPORT} is about {report.completed} rollouts, but {summary.completed} were sent")
    return sessions.Reading(rows, report)


def _given_report(path: Path | None) -> Report | None:
    if path is None:
        return None
    try:
        return Report.model_validate_json(path.read_bytes())
    except PydanticError as error:
        raise ValidationError(f"{REPORT} is no report that this version reads: {error.errors()[0]['msg']}") from error


def _store(session: Session, import_id: str, reading: sessions.Reading, draft: Path, log_file: Path | None) -> None:
    row = session.get_one(tables.Import, import_id, with_for_update=True)
    if row.status != sessions.UPLOADING:
        return  # another request was faster
    run = sessions.become_run(session, row, reading)
    with draft.open("rb") as lines:
        while batch := list(itertools.islice(lines, BATCH)):
            rollouts.store(session, run.id, (Rollout.model_validate_json(line) for line in batch))
    sessions.add_log(session, run, _last_lines(log_file))


def _last_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    with path.open(encoding="utf-8", errors="replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, LOG_LINES)]


def _settle(platform: Platform, import_id: str) -> None:
    """Artifacts go to the run's folder, the rest of the upload goes away. Done again, it finds nothing to do."""
    folder = folder_of(platform, import_id)
    if not folder.exists():
        return
    with platform.db.read() as session:
        row = session.get(tables.Import, import_id)
        moves = list(_moves(platform, session, row)) if row is not None and row.run_id else []
    for source, target in moves:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # moved before
            source.replace(target)
    objects.remove_tree(folder)


def _moves(platform: Platform, session: Session, row: tables.Import) -> Iterator[tuple[Path, Path]]:
    run = session.get(tables.Run, row.run_id)
    if run is None:
        return
    work = platform.settings.runs_dir / run.id
    if run.retries:
        work = work / f"retry-{run.retries}"
    ids = {(r.row_index, r.attempt): r.rollout_id for r in session.scalars(rollouts.listed(run.id))}
    for file in sessions.files_of(session, row.id):
        match = ARTIFACT.match(file.path)
        rollout_id = ids.get((int(match[1]), int(match[2]))) if match else None
        if match and rollout_id:
            yield _file(platform, row.id, file.number), work / "artifacts" / rollout_id / "artifacts" / match[3]


def recover(platform: Platform) -> None:
    """At a start: forget uploads over their time, and finish what a crash interrupted."""
    with platform.db.write() as session:
        gone = sessions.expired(session)
    for import_id in gone:
        objects.remove_tree(folder_of(platform, import_id))
    root = platform.settings.objects_dir / "imports"
    left = [path.name for path in root.iterdir()] if root.exists() else []
    with platform.db.read() as session:
        uploading = sa.select(tables.Import.id).where(tables.Import.status == sessions.UPLOADING)
        waiting = set(session.scalars(uploading))
    for import_id in left:
        if import_id not in waiting:
            try:
                _settle(platform, import_id)
            except (OSError, OsmosisError):
                log.exception("upload %s could not be tidied up", import_id)
