"""Runs: what a person submits, what the platform keeps, what a job is told and what it reports back."""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from osmosis.base.json_types import JsonObject

from .base import Record, utc_now
from .config import EvalConfig, TrainingConfig
from .gate_address import GateAddress
from .report import Report
from .rollout import Category, Failure, Phase, Rollout
from .run_kind import JobKind
from .run_status import RunStatus
from .sandbox import SandboxSettings
from .shard import Shard, Spend

TorchBuild = Literal["auto", "cpu", "cuda"]
"""`auto`: with CUDA where there is an NVIDIA GPU."""


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
    MERGE = "merge"
    SERVING = "serving"
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
    endpoint: str = ""
    """Of a model that is served: where its chat completions are answered, to the platform alone."""
    pause_s: float = Field(default=0.0, ge=0)
    """For how many seconds from now the model's endpoint wants no more calls: it refused one for its rate."""


class ModelJob(Record):
    """What a job of kind `serving` or `merge` is about: in the place of a config, for nobody wrote one."""

    model: str
    """Its name in the store."""
    output_dir: str = ""
    """Merge: the folder of the new model."""
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    """Merge: of the new model's weights; `auto`: as the base model's."""


JOB_PROTOCOL = 1
"""Of what a worker, its jobs and a platform say to each other: those of another number do not understand each other."""


class JobSpec(Record):
    """Everything a job needs to know, and no secret: the answer of `GET /api/jobs/<run>/spec`.

    Paths are short cuts for a job on the platform's own machine; where they are empty, the job asks the platform for
    what is there. Secret values come separately, once.
    """

    run_id: str
    run_name: str
    kind: JobKind
    platform_url: str = ""
    """Where the job reports to: `<platform_url>/api/jobs/<run_id>/...`; as the job itself was told."""
    repository: str = ""
    """Path or URL git can fetch from; empty: `source` of the job's protocol has the commit."""
    commit_sha: str = ""
    """The full commit that is checked out."""
    config: EvalConfig | TrainingConfig | ModelJob
    dataset_path: str = ""
    """Local path of the dataset file; empty: `dataset` of the job's protocol has the rows."""
    dataset_rows: int | None = None
    rows: list[int] = Field(default_factory=list)
    """The selected row indices, resolved by the platform (limit, or the seeded random 10 %): of the whole run."""
    shard: Shard = Field(default_factory=Shard)
    """Which of them are this job's."""
    secret_names: list[str] = Field(default_factory=list)
    """Names of the secrets that are handed over: values redacted everywhere, variables of the rollout."""
    work_dir: str = ""
    """Persistent folder of the job: checkout, journal, logs. The same again when a job resumes the run there."""
    cache_dir: str = ""
    """Environments, by workspace, and wheels."""
    workspace: str = ""
    """Id of the workspace, whose runs share environments."""
    torch: TorchBuild = "auto"
    """Training: which build of torch the trainer's environment gets."""
    model_path: str = ""
    """Training, and eval of a model of the platform: the base model's folder or hub name; empty: as the config says."""
    adapter_path: str = ""
    """Eval of a model of the platform: the folder of its adapter; empty: the base model itself."""
    deployed: bool = False
    """Eval of a model of the platform: it is deployed, and the platform's own inference address answers for it."""
    tokenizer_path: str = ""
    """Training on an engine elsewhere: folder or hub name of the tokenizer."""
    folders: list[str] = Field(default_factory=list)
    """Training elsewhere: which of `model` and `tokenizer` are files that the job's protocol has."""
    models_dir: str = ""
    """Training: where this run's checkpoints go, one folder each."""
    sandbox: SandboxSettings = Field(default_factory=SandboxSettings)
    gate: GateAddress = Field(default_factory=GateAddress)
    """Training: how rollout servers elsewhere reach the job; as the job's own machine says."""

    @property
    def submitted(self) -> EvalConfig | TrainingConfig:
        """The config of a run. `TypeError` for a job that is no run."""
        if isinstance(self.config, ModelJob):
            raise TypeError(f"a job of kind {self.kind} has no config")
        return self.config

    @property
    def named_model(self) -> str:
        """The model as people name it."""
        return self.config.model if isinstance(self.config, ModelJob) else self.config.experiment.model_path

    @property
    def own_rows(self) -> list[int]:
        """The rows of this job."""
        return self.shard.of(self.rows)

    @property
    def elsewhere(self) -> bool:
        """Whether the job shares no disk with the platform: what it leaves has to be sent."""
        return self.kind in ("eval", "training") and not self.repository


class JobEntry(Record):
    """What a job's process reads from its standard input when it starts: the lease, which is secret, so never in a
    file, an environment or a command line, where other processes of the machine could read it; and where to work.

    Through a scheduler, which keeps and shows what it is given, comes a ticket in the place of the lease."""

    lease: str = Field(default="", repr=False)
    """Its token; every message to the platform carries it. Empty with a ticket."""
    ticket: str = Field(default="", repr=False)
    """What the platform gives a lease for, once."""
    work_dir: str
    """With a ticket it may name variables of the machine, as in `$HOME/osmosis`."""
    cache_dir: str
    ca_file: str = ""
    """Certificates to trust the platform by, besides the machine's."""
    sandbox: SandboxSettings | None = None
    """What the operator of this machine says of it; None: what the platform says holds here."""
    gate: GateAddress | None = None
    """The same of its address; None: nothing was said."""

    @model_validator(mode="after")
    def _has_one(self) -> Self:
        if bool(self.lease) == bool(self.ticket):
            raise ValueError("needs a lease or a ticket")
        return self


class Handover(Record):
    """What is secret in a job: never in a file, an environment or a command line, where other processes of the machine
    could read it."""

    token: str = Field(repr=False, min_length=1)
    """Of the lease; every message to the platform carries it."""
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    """Name -> value, for each of `JobSpec.secret_names`."""

    @property
    def inference_key(self) -> str:
        """Of the lease: see `inference_key`."""
        return inference_key(hashlib.sha256(self.token.encode()).hexdigest())


def inference_key(lease_hash: str) -> str:
    """What the platform shows to the job of a deployment when it passes a question on. Both make it of the SHA-256 of
    the lease's token, so it is sent nowhere, stored nowhere, and another one with every lease."""
    return hashlib.sha256(f"inference/{lease_hash}".encode()).hexdigest()


class JobResult(Record):
    """How a job ended: its last message."""

    status: RunStatus
    report: Report | None = None
    failure: Failure | None = None

    @classmethod
    def used_up(cls, why: str, report: Report) -> JobResult:
        """Of a run that its budget ended; `why` is what `Budget.used_up` said."""
        fix = "finished rollouts are kept; retry it with a larger max_cost or max_tokens_total, or submit fewer rows"
        failure = Failure(phase=Phase.SETUP, category=Category.BUDGET, message=why, fix=fix)
        return cls(status=RunStatus.STOPPED, report=report, failure=failure)

    @classmethod
    def ran_out(cls, why: str, report: Report) -> JobResult:
        """Of a run that `wall_s` ended; `why` is what its report says, or how many of its jobs it was."""
        fix = "finished rollouts are kept; retry the run for the rest, or submit it with a larger wall_s or more shards"
        failure = Failure(phase=Phase.SETUP, category=Category.TIMEOUT, message=why, fix=fix)
        return cls(status=RunStatus.STOPPED, report=report, failure=failure)


class RolloutBatch(Record):
    """Finished rollouts, in one message; storing is idempotent by their keys."""

    rollouts: list[Rollout]


class HeartbeatReply(Record):
    stop: bool = False
    """The person asked to stop, or the platform shuts down: finish what is in flight, report `stopped`."""
    concurrency: int | None = None
    """How many rollouts this job may have in flight from now on: what shards that are over leave goes to the others."""
    elsewhere: Spend | None = None
    """What the other shards of the run have spent; it counts against the same budget."""
    pause_s: float = 0.0
    """For how many seconds to ask the model's endpoint nothing: it refused a call of another job for its rate."""
    every_s: float = 0.0
    """How many seconds to leave between two heartbeats, or two reports: there are many jobs. 0: as the job likes."""


def hold_of(folder: Path) -> Path:
    """The file beside a checkpoint's folder that says: it is in use, so whoever prunes leaves it alone."""
    return folder.with_name(f".{folder.name}.held")


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
