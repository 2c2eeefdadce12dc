"""The files of an uploaded run: what its manifest announces, by a closed list of shapes, and the rollouts read from
them; a trajectory (ours, or ATIF) that contradicts the index is refused."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from pydantic import Field, ValidationError as PydanticError

from osmosis.base.jsonable import JsonObject
from osmosis.base.processes import reader_main
from osmosis.errors import ValidationError
from osmosis.metrics.summary import Summary, Terms
from osmosis.platform.runs import rollouts
from osmosis.records.base import Record
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.annotations import ANNOTATIONS, Annotation
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout, RolloutStatus, Score, Usage
from osmosis.records.run.rows import MAX_BYTES, DerivedKeys, Key
from osmosis.records.trajectory import messages_from_trajectory

SCHEMA = 1
MAX_FILES = 100_000
INDEX = "index.jsonl"
REPORT = "report.json"
LOGS = "logs.txt"
TOKENS = "tokens.jsonl"
FIXED_FILES = (INDEX, REPORT, LOGS, ANNOTATIONS, TOKENS, "progress.json", "metrics.json", "summary.jsonl")
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


def is_allowed_path(path: str) -> bool:
    if path in FIXED_FILES or TRAJECTORY.match(path):
        return True
    match = TRIAL.match(path)
    return parse_artifact(path) is not None if match is None or match[2] is not None else _is_id(match[1])


def _is_id(text: str) -> bool:
    try:
        return bool(check_rollout_id(text))
    except ValueError:
        return False


PHASES = {"grader": Phase.SCORE, "score": Phase.SCORE, "model": Phase.MODEL, "setup": Phase.SETUP}
Find = Callable[[str], Path | None]


class IndexRow(Record):
    row_index: int = Field(ge=0)
    run_index: int = Field(ge=0)
    rollout_id: str
    trajectory_filename: str | None = None
    status: RolloutStatus
    reward: float | None = None
    tokens: int | None = None
    duration_ms: float | None = None
    error_type: str | None = None


def read_all(find: Find) -> Iterator[Rollout]:
    index = find(INDEX)
    if index is None:
        raise ValidationError(f"the run has no {INDEX}")
    places: set[tuple[int, int]] = set()
    keys, all_keys = DerivedKeys(), set[Key]()
    with index.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = IndexRow.model_validate_json(line)
                check_rollout_id(row.rollout_id)
            except PydanticError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ValidationError(f"{INDEX} line {number}: {where}: {first['msg']}") from error
            except ValueError as error:
                raise ValidationError(f"{INDEX} line {number}: {error}") from error
            if (row.row_index, row.run_index) in places:
                message = f"{INDEX} line {number}: row {row.row_index}, run {row.run_index} is listed twice"
                raise ValidationError(message)
            places.add((row.row_index, row.run_index))
            rollout = _rollout(row, find)
            rollout.row_key = keys.of(rollout.row_key, rollout.row_index, rollout.hashes.get("row"))
            if rollout.key in all_keys:
                message = f"{INDEX} line {number}: row {rollout.row_key!r} is listed twice with different positions"
                raise ValidationError(message)
            all_keys.add(rollout.key)
            yield rollout


def _rollout(row: IndexRow, find: Find) -> Rollout:
    if not row.trajectory_filename:
        return _from_index(row, {})
    name = row.trajectory_filename.rpartition("/")[2]
    names = f"rollout_trials/{row.rollout_id}/{name}", f"trajectories/{name}"
    name, path = next(((name, path) for name in names if (path := find(name)) is not None), (names[-1], None))
    if path is None:
        raise ValidationError(f"{INDEX} names {name}, which is not part of the upload")
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValidationError(f"{name} is not a JSON object")
        if "row_index" not in document:
            return _from_index(row, document)
        rollout = Rollout.model_validate(document)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValidationError(f"{name} cannot be read: {error}") from error
    identity = (row.row_index, row.run_index, row.rollout_id)
    if (rollout.row_index, rollout.attempt, rollout.rollout_id) != identity:
        raise ValidationError(f"{name} belongs to another rollout than {INDEX} says")
    return rollout


def _from_index(row: IndexRow, document: Mapping[str, Any]) -> Rollout:
    extra = (document.get("extra") or {}).get("osmosis") or {}
    info = {"trajectory": {"extra": extra}} if extra else {}
    return Rollout(
        rollout_id=row.rollout_id,
        row_index=row.row_index,
        attempt=row.run_index,
        status=row.status,
        messages=messages_from_trajectory(document),
        scores={} if row.reward is None else {"reward": Score(name="reward", value=row.reward)},
        failure=_failure(row) if row.status is RolloutStatus.FAILED else None,
        usage=_usage(document.get("final_metrics") or {}, row.tokens),
        num_tool_calls=sum(len(step.get("tool_calls") or []) for step in document.get("steps") or ()),
        duration_ms=row.duration_ms or 0.0,
        model=(document.get("agent") or {}).get("model_name"),
        info=info,
    )


def _failure(row: IndexRow) -> Failure:
    name = row.error_type or "unknown"
    category = Category(name) if name in {category.value for category in Category} else Category.UNKNOWN
    message = f"the local run recorded {name if row.error_type else 'no reason'}"
    return Failure(phase=PHASES.get(name.partition("_")[0], Phase.AGENT), category=category, message=message)


def _usage(metrics: Mapping[str, Any], tokens: int | None) -> Usage:
    prompt, completion = metrics.get("total_prompt_tokens"), metrics.get("total_completion_tokens")
    if prompt is None and completion is None:
        return Usage(prompt_tokens=tokens or 0)
    cached, cost = metrics.get("total_cached_tokens") or 0, metrics.get("total_cost_usd")
    return Usage(prompt_tokens=prompt or 0, completion_tokens=completion or 0, cached_tokens=cached, cost_usd=cost)


def read(values: JsonObject) -> object:
    files: dict[str, str] = values["files"]

    def find(path: str) -> Path | None:
        return Path(files[path]) if path in files else None

    local = UploadedRun.model_validate(values["run"])
    evaluation = local.evaluation_config
    summary = Summary(Terms(evaluation.n, evaluation.pass_threshold))
    indexes: set[int] = set()
    spent_ms = 0.0
    with Path(values["draft"]).open("wb") as out:
        for rollout in read_all(find):
            summary.add(rollout)
            indexes.add(rollout.row_index)
            spent_ms += rollout.duration_ms
            out.write(orjson.dumps(rollouts.columns_of(rollout)) + b"\n")
    selected = local.experiment_config.dataset.selected_source_rows
    rows = sorted(set(selected) | indexes if isinstance(selected, list) else indexes)
    report = _given_report(find(REPORT)) or summary.report(rows=len(rows), duration_ms=spent_ms)
    _write_annotations(find(ANNOTATIONS), Path(values["annotations"]))
    if report.completed != summary.completed:
        raise ValidationError(f"{REPORT} describes {report.completed} rollouts, but {summary.completed} were uploaded")
    return {"rows": rows, "report": report.to_dict()}


def _write_annotations(path: Path | None, draft: Path) -> None:
    with draft.open("wb") as out, (path or draft).open("rb") as lines:
        for line in lines if path is not None else ():
            with contextlib.suppress(PydanticError):
                out.write(Annotation.model_validate_json(line).to_line())


def _given_report(path: Path | None) -> Report | None:
    if path is None:
        return None
    try:
        return Report.model_validate_json(path.read_bytes())
    except PydanticError as error:
        message = f"{REPORT} is not a report that this version can read: {error.errors()[0]['msg']}"
        raise ValidationError(message) from error


if __name__ == "__main__":
    sys.exit(reader_main(read))
