"""The run and the files that an upload announces; the paths of files follow a closed list of shapes."""

import re
from dataclasses import dataclass
from datetime import datetime

from pydantic import Field

from osmosis.errors import ValidationError
from osmosis.records.base import Record
from osmosis.records.protocol.messages import check_rollout_id
from osmosis.records.run.rows import MAX_BYTES

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
