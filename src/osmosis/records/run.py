"""Runs: what a person submits, what the platform keeps, what a job is told and what it reports back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Literal

from pydantic import Field

from osmosis.base.json_types import JsonObject

from .base import Record, utc_now
from .config import EvalConfig, TrainingConfig
from .report import Report
from .rollout import Failure, Rollout
from .sandbox import SandboxSettings

RunKind = Literal["eval", "training"]
TorchBuild = Literal["auto", "cpu", "cuda"]
"""`auto`: with CUDA where there is an NVIDIA GPU."""
NOUNS: Mapping[RunKind, str] = {"eval": "eval", "training": "train"}
"""What the command line calls a kind of run."""


class RunStatus(str, Enum):
    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED)


class SyncStatus(str, Enum):
    PENDING = "Pending"
    SYNCING = "Syncing"
    SUCCESS = "Success"
    FAILED = "Failed"


class Stage(str, Enum):
    """What a job is doing; shown while a run is running."""

    CHECKOUT = "checkout"
    ENVIRONMENT = "environment"
    START = "start"
    PREFLIGHT = "preflight"
    ROLLOUTS = "rollouts"
    TRAINING = "training"
    REPORT = "report"


class LogLine(Record):
    """One line of a run's log."""

    timestamp: datetime = Field(default_factory=utc_now)
    level: Literal["debug", "info", "warning", "error"] = "info"
    step: str = ""
    """Stage, or the stream it came from (`rollout-server`, `uv`)."""
    message: str
    details: JsonObject | None = None


class Progress(Record):
    """What a heartbeat says: the stage, how far, and the report so far."""

    stage: Stage
    completed: int = 0
    total: int = 0
    report: Report | None = None
    sandbox: str = ""
    """What keeps the rollouts from everything else, in words; empty until that is decided."""


class JobSpec(Record):
    """Everything a job needs to know, and no secret: written to `<job folder>/job.json` by the executor.

    Secret values and the lease token come separately, as a `Handover`.
    """

    run_id: str
    run_name: str
    kind: RunKind
    platform_url: str
    """Where the job reports to: `<platform_url>/api/jobs/<run_id>/...`."""
    repository: str
    """Path or URL git can fetch from."""
    commit_sha: str
    """The full commit that is checked out."""
    config: EvalConfig | TrainingConfig
    dataset_path: str
    """Local path of the dataset file."""
    dataset_rows: int | None = None
    rows: list[int]
    """The selected row indices, resolved by the platform (limit, or the seeded random 10 %)."""
    secret_names: list[str] = Field(default_factory=list)
    """Names of the secrets that are handed over: values redacted everywhere, variables of the rollout."""
    work_dir: str
    """Persistent folder of the run: checkout, journal, logs. The same again when a job resumes the run."""
    cache_dir: str
    """Environments, by workspace, and wheels."""
    workspace: str = ""
    """Id of the workspace, whose runs share environments."""
    torch: TorchBuild = "auto"
    """Training: which build of torch the trainer's environment gets."""
    model_path: str = ""
    """Training, and eval of a model of the platform: the base model's folder or hub name; empty: as the config says."""
    adapter_path: str = ""
    """Eval of a model of the platform: the folder of its adapter; empty: the base model itself."""
    models_dir: str = ""
    """Training: where this run's checkpoints go, one folder each."""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)


class Handover(Record):
    """What a job reads from its standard input when it starts: secret, so never in a file, an environment or a command
    line, where other processes of the machine could read it."""

    token: str = Field(repr=False, min_length=1)
    """Of the lease; every message to the platform carries it."""
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    """Name -> value, for each of `JobSpec.secret_names`."""


class JobResult(Record):
    """How a job ended: its last message."""

    status: RunStatus
    report: Report | None = None
    failure: Failure | None = None


class RolloutBatch(Record):
    """Finished rollouts, in one message; storing is idempotent by their keys."""

    rollouts: list[Rollout]


class HeartbeatReply(Record):
    stop: bool = False
    """The person asked to stop, or the platform shuts down: finish what is in flight, report `stopped`."""


class CheckpointReport(Record):
    """A checkpoint of a training run that is on the disk, complete."""

    step: int = Field(ge=0)
    path: str
    """Its folder, in the run's own folder of models."""
    kind: Literal["regular", "stop", "final"] = "regular"
    reward: float | None = None
    """Of its weights: on the held-out rows, else on those of the step."""
    removed: list[str] = Field(default_factory=list)
    """Folders of older checkpoints that were removed for it."""


class MetricPoint(Record):
    """One point of a curve."""

    key: str
    step: int
    value: float
    timestamp: datetime = Field(default_factory=utc_now)
