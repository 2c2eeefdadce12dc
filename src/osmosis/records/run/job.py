import hashlib
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record, utc_now
from osmosis.records.config.optimize import Optimization, OptimizeConfig
from osmosis.records.config.run_config import EvalConfig, TrainingConfig
from osmosis.records.config.worker import GateAddress
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Category, Failure, Phase, Rollout
from osmosis.records.run.rows import Shard, Spend
from osmosis.records.run.status import JobKind, RunStatus
from osmosis.records.sandbox import SandboxSettings

TorchBuild = Literal["auto", "cpu", "cuda"]  # `auto`: with CUDA where there is an NVIDIA GPU


class SyncStatus(str, Enum):
    PENDING = "Pending"
    SYNCING = "Syncing"
    SUCCESS = "Success"
    FAILED = "Failed"


class Stage(str, Enum):
    CHECKOUT = "checkout"
    ENVIRONMENT = "environment"
    START = "start"
    PREFLIGHT = "preflight"
    ROLLOUTS = "rollouts"
    TRAINING = "training"
    MERGE = "merge"
    SERVING = "serving"
    REPORT = "report"


ALARM = "alarm"  # Step of the lines that say what is wrong with a training: `[notify]` sends them


class LogLine(Record):
    timestamp: datetime = Field(default_factory=utc_now)
    level: Literal["debug", "info", "warning", "error"] = "info"
    step: str = ""
    """Stage, or the stream it came from (`rollout-server`, `uv`)."""
    message: str
    details: JsonObject | None = None


class Progress(Record):
    """Content of a heartbeat: stage, progress, and the report so far."""

    stage: Stage
    completed: int = 0
    total: int = 0
    in_flight: dict[str, int] = Field(default_factory=dict)  # Rollouts that run now, by their stage
    report: Report | None = None
    sandbox: str = ""
    """Isolation of rollouts, in words; empty until that is decided."""
    endpoint: str = ""
    """Address of a served model's chat completions, for the platform alone."""
    pause_s: float = Field(default=0.0, ge=0)
    """Seconds without calls that the model's endpoint asked for, when it refused one for its rate."""


class ModelJob(Record):
    """The subject of a job of kind `serving` or `merge`, in place of a config."""

    model: str
    output_dir: str = ""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Merge: type of the new model's weights; `auto`: the base model's."""


JOB_PROTOCOL = 1
"""Version of the messages between workers, jobs and platform; different versions do not understand each other."""


class JobSpec(Record):
    """Everything a job needs to know except secrets: the response of `GET /api/jobs/<run>/spec`."""

    run_id: str
    run_name: str
    kind: JobKind
    platform_url: str = ""
    """Reports go to `<platform_url>/api/jobs/<run_id>/...`."""
    repository: str = ""
    """Path or URL for git; empty: the job fetches the commit by `source` of its protocol."""
    commit_sha: str = ""
    config: OptimizeConfig | EvalConfig | TrainingConfig | ModelJob
    optimization: Optimization | None = None
    """How far an earlier job of this search came."""
    dataset_path: str = ""
    """Local path of the dataset file; empty: the job fetches the rows by `dataset` of its protocol."""
    sizes: list[int] = Field(default_factory=list)
    """Training with several environments: the number of rows of each, which are numbered on."""
    dataset_rows: int | None = None
    rows: list[int] = Field(default_factory=list)
    """Selected row indices of the whole run (limit, or the seeded random 10 %)."""
    shard: Shard = Field(default_factory=Shard)
    secret_names: list[str] = Field(default_factory=list)
    work_dir: str = ""
    """Persistent folder of checkout, journal and logs; the same when a job resumes the run there."""
    cache_dir: str = ""
    workspace: str = ""
    person: str = ""
    """Id of who submitted the run: nobody else uses what is built for it."""
    torch: TorchBuild = "auto"
    model_path: str = ""
    """Training, and eval of a platform model: the base model's folder or hub name; empty: as the config says."""
    adapter_path: str = ""
    """Eval of a platform model, or training that goes on from it: the folder of its adapter; empty: there is none."""
    deployed: bool = False
    """Eval of a platform model that is deployed: the platform's inference address serves it."""
    tokenizer_path: str = ""
    """Training on an engine elsewhere: folder or hub name of the tokenizer."""
    teacher_path: str = ""
    """Training with a teacher: the folder or hub name of that model."""
    folders: list[str] = Field(default_factory=list)
    """Training elsewhere: which of `model`, `tokenizer` and `teacher` the job fetches as files."""
    models_dir: str = ""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    gate: GateAddress = Field(default_factory=GateAddress)

    @property
    def submitted(self) -> EvalConfig | TrainingConfig:
        if isinstance(self.config, ModelJob):
            raise TypeError(f"a job of kind {self.kind} has no config")
        return self.config

    @property
    def named_model(self) -> str:
        return self.config.model if isinstance(self.config, ModelJob) else self.config.experiment.model_path

    @property
    def own_rows(self) -> list[int]:
        return self.shard.of(self.rows)

    @property
    def elsewhere(self) -> bool:
        return self.kind in ("eval", "training") and not self.repository


class JobEntry(Record):
    """Standard input of a job's process: the secret lease and the work folder."""

    lease: str = Field(default="", repr=False)
    ticket: str = Field(default="", repr=False)
    """Exchanged for a lease, once."""
    work_dir: str
    """With a ticket it may contain variables of the machine, as in `$HOME/osmosis`."""
    cache_dir: str
    ca_file: str = ""
    sandbox: SandboxSettings | None = None
    """Settings of this machine's operator; None: those of the platform."""
    gate: GateAddress | None = None

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if bool(self.lease) == bool(self.ticket):
            raise ValueError("needs a lease or a ticket")
        return self


class Handover(Record):
    """Secrets of a job: never in a file, an environment or a command line, which other processes could read."""

    token: str = Field(repr=False, min_length=1)
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    """Value by name, for each of `JobSpec.secret_names`."""

    @property
    def inference_key(self) -> str:
        return derive_inference_key(hashlib.sha256(self.token.encode()).hexdigest())


def derive_inference_key(lease_hash: str) -> str:
    """Derive the key by which the platform authenticates to a deployment's job."""
    return hashlib.sha256(f"inference/{lease_hash}".encode()).hexdigest()


class JobResult(Record):
    status: RunStatus
    report: Report | None = None
    failure: Failure | None = None

    @classmethod
    def used_up(cls, reason: str, report: Report) -> "JobResult":
        fix = "finished rollouts are kept; retry the run with a larger max_cost or max_tokens_total, or with fewer rows"
        failure = Failure(phase=Phase.SETUP, category=Category.BUDGET, message=reason, fix=fix)
        return cls(status=RunStatus.STOPPED, report=report, failure=failure)

    @classmethod
    def ran_out(cls, reason: str, report: Report) -> "JobResult":
        """Return the result of a run that `wall_s` ended; `reason`: the report's, or the number of its jobs."""
        fix = "finished rollouts are kept; retry the run for the rest, or submit it with a larger wall_s or more shards"
        failure = Failure(phase=Phase.SETUP, category=Category.TIMEOUT, message=reason, fix=fix)
        return cls(status=RunStatus.STOPPED, report=report, failure=failure)


class RolloutBatch(Record):
    """Finished rollouts; storing is idempotent by their keys."""

    rollouts: list[Rollout]


class HeartbeatReply(Record):
    stop: bool = False
    """A person stops the run, or the platform shuts down: finish what is in flight, report `stopped`."""
    concurrency: int | None = None
    """Rollouts that this job may have in flight from now on: finished shards leave theirs to the others."""
    elsewhere: Spend | None = None
    """Spend of the run's other shards, against the same budget."""
    pause_s: float = 0.0
    """Seconds without calls to the model's endpoint, which refused another job's call for its rate."""
    every_s: float = 0.0
    """Seconds between two heartbeats or reports, under load. 0: as the job likes."""


def hold_file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.held")


class CheckpointReport(Record):
    """A complete checkpoint on the disk."""

    step: int = Field(ge=0)
    path: str
    kind: Literal["regular", "stop", "final"] = "regular"
    reward: float | None = None
    """On the held-out rows, else on those of the step."""
    removed: list[str] = Field(default_factory=list)


class MetricPoint(Record):
    key: str
    step: int
    value: float
    timestamp: datetime = Field(default_factory=utc_now)
