"""The files of a run that can be downloaded. A path from outside is compared with what exists, never joined."""

import json
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis._version import __version__
from osmosis.base import safe_open
from osmosis.errors import NotFound, ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.objects.store import Objects
from osmosis.platform.runs import rollouts, views
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api.runs import FileTotals, RunFile, RunFiles
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.annotations import ANNOTATIONS
from osmosis.records.run.rollout import Rollout
from osmosis.records.trajectory import trajectory_from_rollout

TYPES = ("metrics", "trajectories", "artifacts", "logs", "annotations", "tokens")
TOKENS = "tokens.jsonl"
MOST_TOKENS = 2**40
MAX_URLS = 500
TRAJECTORY = re.compile(r"^trajectories/row_(\d+)_run_(\d+)\.json\Z")
ARTIFACT = re.compile(r"^artifacts/row_(\d+)_run_(\d+)/(.+)\Z")


StoredSizes = Mapping[str, int]
"""The size in bytes of each artifact in the object store, by key; empty if objects are in the data folder."""


def list_stored(objects: Objects, run_id: str) -> dict[str, int]:
    return {item.key: item.size for item in objects.list(f"runs/{run_id}/")} if objects.elsewhere else {}


def build_manifest(
    session: Session,
    settings: PlatformSettings,
    run: tables.Run,
    stored: StoredSizes,
    types: str | None,
    rows: str | None,
) -> RunFiles:
    selected = [part.strip() for part in (types or ",".join(TYPES)).split(",") if part.strip()]
    if unknown := sorted(set(selected) - set(TYPES)):
        raise ValidationError(f"types: unknown {', '.join(unknown)}", hint=f"use {', '.join(TYPES)}")
    ranges = list(rollouts.parse_rows(rows))
    files: list[RunFile] = []
    if "metrics" in selected:
        for path in ("metrics.json", "summary.jsonl"):
            files.append(RunFile(path=path, size=len(build_content(session, settings, run, path))))
    if "trajectories" in selected:
        files.extend(_trajectories(session, run, ranges))
    if "artifacts" in selected:
        files.extend(_artifacts(session, settings, run, stored, ranges))
    if "logs" in selected:
        files.append(RunFile(path="logs.txt", size=len(build_content(session, settings, run, "logs.txt"))))
    if "annotations" in selected and (annotations := build_content(session, settings, run, ANNOTATIONS)):
        files.append(RunFile(path=ANNOTATIONS, size=len(annotations)))
    if "tokens" in selected:
        files.extend(RunFile(path=TOKENS, size=size) for size in _tokens(session, settings, run, stored))
    totals = FileTotals(files=len(files), bytes=sum(file.size or 0 for file in files))
    return RunFiles(files=files, totals=totals)


def _tokens(session: Session, settings: PlatformSettings, run: tables.Run, stored: StoredSizes) -> Iterator[int]:
    try:
        file = open_artifact(session, settings, run, stored, TOKENS)
    except NotFound:
        return
    if isinstance(file, str):
        yield stored[file]
    elif file is not None:
        os.close(file.fd)
        yield file.size


def _trajectories(session: Session, run: tables.Run, ranges: list[tuple[int, int]]) -> Iterator[RunFile]:
    query = _select_rows(run, ranges)
    for row in session.scalars(query.options(undefer(tables.Rollout.body)).execution_options(yield_per=100)):
        path = f"trajectories/row_{row.row_index}_run_{row.attempt}.json"
        yield RunFile(path=path, size=len(_trajectory(row.body)))


def _select_rows(run: tables.Run, ranges: list[tuple[int, int]]) -> sa.Select[tables.Rollout]:
    query = rollouts.select_rollouts(run.id)
    return query.where(sa.or_(*(tables.Rollout.row_index.between(*ends) for ends in ranges))) if ranges else query


def _trajectory(body: str) -> bytes:
    return trajectory_from_rollout(Rollout.model_validate_json(body), version=__version__).to_line()


def _places(session: Session, run: tables.Run, rollout_id: str) -> Iterator[list[str]]:
    shards = session.scalar(sa.select(sa.func.max(tables.Job.shards)).where(tables.Job.run_id == run.id)) or 1
    shards = shards if shards > 1 else 0
    try:
        check_rollout_id(rollout_id)  # it comes from a job, and becomes a folder's name
    except ValueError:
        return
    cut = [[], *([f"shard-{number}"] for number in range(shards))]
    for work in (*([f"retry-{number}"] for number in range(run.retries, 0, -1)), []):
        for part in cut:
            yield [*work, *part, "artifacts", rollout_id, "artifacts"]


def _most_bytes(settings: PlatformSettings) -> int:
    return settings.sandbox.artifacts_mb * 1024 * 1024


def _artifacts(
    session: Session, settings: PlatformSettings, run: tables.Run, stored: StoredSizes, ranges: list[tuple[int, int]]
) -> Iterator[RunFile]:
    by_folder = _by_place(stored)
    for row in session.scalars(_select_rows(run, ranges)):
        before = f"artifacts/row_{row.row_index}_run_{row.attempt}"
        files = _list_files(settings, run, by_folder, _places(session, run, row.rollout_id))
        yield from (RunFile(path=f"{before}/{path}", size=size) for path, size in files.items())


def list_files(session: Session, platform: Platform, run: tables.Run, rollout_id: str) -> dict[str, int]:
    """Return the size of each artifact of a rollout, by path."""
    places = list(_places(session, run, rollout_id))
    stored = ChainMap(*(list_stored(platform.objects, "/".join((run.id, *place))) for place in places))
    return _list_files(platform.settings, run, _by_place(stored), places)


def _list_files(
    settings: PlatformSettings, run: tables.Run, by_folder: dict[str, dict[str, int]], places: Iterable[list[str]]
) -> dict[str, int]:
    for place in places:
        local = safe_open.list_artifacts(settings.runs_dir / run.id, place, most_bytes=_most_bytes(settings))
        files = {**by_folder.get(_key(run, place), {}), **dict(local or ())}
        if files or local is not None:
            return dict(sorted(files.items()))
    return {}


def _key(run: tables.Run, parts: Sequence[str]) -> str:
    return "/".join(("runs", run.id, *parts))


def _by_place(stored: StoredSizes) -> dict[str, dict[str, int]]:
    by_folder: dict[str, dict[str, int]] = {}
    for key, size in stored.items():
        work, _, rest = key.partition("/artifacts/")
        rollout, _, path = rest.partition("/artifacts/")
        by_folder.setdefault(f"{work}/artifacts/{rollout}/artifacts", {})[path] = size
    return by_folder


def build_content(session: Session, settings: PlatformSettings, run: tables.Run, path: str) -> bytes:
    if path == "metrics.json":
        return json.dumps(views.build_metrics(session, run).to_dict(), indent=2, allow_nan=False).encode() + b"\n"
    if path == "summary.jsonl":
        rows = session.scalars(rollouts.select_rollouts(run.id))
        return b"".join(json.dumps(_index_row(row), allow_nan=False).encode() + b"\n" for row in rows)
    if path == ANNOTATIONS:
        return b"".join(annotation.to_line() for annotation in rollouts.iterate_annotations(session, run.id))
    if path == "logs.txt":
        query = sa.select(tables.RunLog).where(tables.RunLog.run_id == run.id).order_by(tables.RunLog.id)
        lines = session.scalars(query.execution_options(yield_per=1000))
        texts = (f"{line.timestamp.isoformat()} {line.level} {line.step}: {line.message}\n" for line in lines)
        return b"".join(text.encode(errors="replace") for text in texts)
    if match := TRAJECTORY.match(path):
        return _trajectory(rollouts.get_text(session, run.id, int(match[1]), int(match[2])))
    raise NotFound(f"run {run.name!r} has no file {path!r}")


def _index_row(row: tables.Rollout) -> dict[str, object]:
    return {
        "row_index": row.row_index,
        "run_index": row.attempt,
        "rollout_id": row.rollout_id,
        "trajectory_filename": f"row_{row.row_index}_run_{row.attempt}.json",
        "status": row.status,
        "reward": row.reward,
        "tokens": row.tokens,
        "duration_ms": row.duration_ms,
        "error_type": row.failure_category,
    }


def _parts(session: Session, run: tables.Run, path: str) -> Iterator[list[str]]:
    if path == TOKENS:
        yield [*([f"retry-{run.retries}"] if run.retries else []), TOKENS]
    elif match := ARTIFACT.match(path):
        row = rollouts.get_row(session, run.id, int(match[1]), int(match[2]))
        for folder in _places(session, run, row.rollout_id):
            yield [*folder, *match[3].split("/")]


def open_artifact(
    session: Session, settings: PlatformSettings, run: tables.Run, stored: StoredSizes, path: str
) -> safe_open.ArtifactFile | str | None:
    """Return an open artifact, or its key in the object store; None for another kind of path."""
    if path != TOKENS and not ARTIFACT.match(path):
        return None
    most_bytes = MOST_TOKENS if path == TOKENS else _most_bytes(settings)
    for parts in _parts(session, run, path):
        if (key := _key(run, parts)) in stored:
            return key
        if file := safe_open.open_artifact(settings.runs_dir / run.id, parts, most_bytes=most_bytes):
            return file
    raise NotFound(f"run {run.name!r} has no file {path!r}")


def find_key(session: Session, run: tables.Run, stored: StoredSizes, path: str) -> str | None:
    keys = (_key(run, parts) for parts in _parts(session, run, path)) if stored else ()
    return next((key for key in keys if key in stored), None)


def check_paths(paths: list[str]) -> None:
    if len(paths) > MAX_URLS:
        raise ValidationError(f"at most {MAX_URLS} files per request", field="items")
