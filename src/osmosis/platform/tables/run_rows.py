"""Runs, their jobs and all they leave: events, logs, rollouts, curves, checkpoints; and local runs on their way in.

JSON columns say what is in them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal, TypedDict

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from osmosis.records.base import utc_now

from .base import Base, Json, new_id


class StoredExperiment(TypedDict, total=False):
    """What every reader of a stored config may count on in its first table."""

    rollout: str
    entrypoint: str
    model_path: str
    dataset: str


class StoredEvaluation(TypedDict, total=False):
    """How often each row is run, how many at once, from which reward on one passes, and what all may cost."""

    n: int
    batch_size: int
    pass_threshold: float
    max_cost: float | None
    max_tokens_total: int | None


class StoredTraining(TypedDict, total=False):
    """How many prompts are rolled out at once, and how often each."""

    rollout_batch_size: int
    n_samples_per_prompt: int


class StoredConfig(TypedDict, total=False):
    """A checked config in the shape of the TOML file; the record of its kind reads it whole."""

    experiment: StoredExperiment
    evaluation: StoredEvaluation
    training: StoredTraining
    env: dict[str, str]
    model: str
    """Of a run of kind `serving` or `merge`: records.run.ModelJob."""
    dtype: Literal["auto", "fp32", "bf16"]


class StoredProgress(TypedDict, total=False):
    """records.run.Progress without its report."""

    stage: str
    completed: int
    total: int
    sandbox: str
    endpoint: str


class Imported(TypedDict):
    """Where a run that was made elsewhere comes from."""

    local_run_id: str
    name: str
    """Its name there."""
    provenance: dict[str, object]


class Run(Base):
    __tablename__ = "runs"
    __table_args__ = (
        sa.UniqueConstraint("workspace_id", "kind", "name"),
        sa.Index("ix_runs_queue", "status", "created_at"),
        sa.Index("ix_runs_listed", "workspace_id", "kind", "created_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    repository_id: Mapped[str | None] = mapped_column(sa.ForeignKey("repositories.id", ondelete="SET NULL"))
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id", ondelete="SET NULL"), index=True)
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    kind: Mapped[str]
    """records.run.JobKind. A deployment (`serving`) and a merge are runs of which only the machinery knows: they are
    in the same queue, with the same leases and logs; rollout, dataset and code are empty."""
    name: Mapped[str]
    status: Mapped[str]
    """records.run.RunStatus; changed only by `services.run_lifecycle.switch_status`."""
    config: Mapped[StoredConfig] = mapped_column(Json)
    """The checked config, in the shape of the TOML file."""
    rollout: Mapped[str]
    model_path: Mapped[str]
    dataset: Mapped[str]
    """Name at the time of submit."""
    dataset_path: Mapped[str]
    """The file it runs on, below the data folder; empty for an imported run without one."""
    dataset_sha256: Mapped[str | None]
    dataset_rows: Mapped[int | None]
    branch: Mapped[str | None]
    commit_sha: Mapped[str]
    rows: Mapped[list[int]] = mapped_column(Json, deferred=True)
    """The selected row indices; loaded only when asked for."""
    sampled_rows: Mapped[int] = mapped_column(default=0)
    """How many they are."""
    sample_seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    """Seed of the random 10 %; None when `limit` was given."""
    secret_scopes: Mapped[dict[str, str]] = mapped_column(Json)
    """NAME -> `workspace`, `user`, `user_override` or `run`."""
    progress: Mapped[StoredProgress | None] = mapped_column(Json)
    report: Mapped[dict[str, object] | None] = mapped_column(Json)
    """records.report.Report, running or final."""
    failure: Mapped[dict[str, object] | None] = mapped_column(Json)
    """records.rollout.Failure."""
    retries: Mapped[int] = mapped_column(default=0)
    """How often a person asked for the failed rollouts again; each has its own work folder."""
    priority: Mapped[int] = mapped_column(default=0)
    """Among those of its workspace that wait, the highest comes first."""
    imported: Mapped[Imported | None] = mapped_column(Json)
    """None for runs of this platform."""
    snapshot: Mapped[dict[str, object] | None] = mapped_column(Json)
    """records.source.SnapshotNote: what was not committed, when a working tree was submitted as it was."""
    quarantine: Mapped[dict[str, object] | None] = mapped_column(Json)
    """records.quarantine.RowQuarantine: what `quarantine.toml` of its commit says of its dataset; None: nothing."""
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    """With `note` and `pinned`: records.marks.Marks."""
    note: Mapped[str] = mapped_column(sa.Text, default="")
    pinned: Mapped[bool] = mapped_column(default=False)

    stop_requested_at: Mapped[datetime | None]

    created_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]


class QueueState:
    """Where a job of a run is."""

    WAITING = "waiting"
    """For a worker, also after one that is gone."""
    HELD = "held"
    """By whoever has its lease."""
    OVER = "over"


class Job(Base):
    """The work of a run, or of one shard of its rows: its place in the queue, and the lease that says who does it."""

    __tablename__ = "jobs"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "shard"),
        sa.Index("ix_jobs_queue", "state", "lease_until"),
    )

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    shard: Mapped[int] = mapped_column(default=0)
    shards: Mapped[int] = mapped_column(default=1, server_default="1")
    """Of how many it is one (records.shard.Shard)."""
    state: Mapped[str] = mapped_column(default=QueueState.WAITING)
    rollouts: Mapped[int] = mapped_column(default=1)
    """How many it may have in flight: this and the three below count against the quotas of its workspace."""
    cpus: Mapped[float] = mapped_column(default=0.0)
    memory_mb: Mapped[int] = mapped_column(default=0)
    gpus: Mapped[int] = mapped_column(default=0)
    lease_hash: Mapped[str | None] = mapped_column(unique=True)
    """SHA-256 of the token of who does it now, or did it last."""
    lease_id: Mapped[str | None]
    """Which life of the job the lease is of; no secret."""
    lease_until: Mapped[datetime | None]
    ticket_hash: Mapped[str | None] = mapped_column(unique=True)
    """SHA-256 of the ticket that its executor was given in the place of the lease (services.tickets)."""
    ticket_until: Mapped[datetime | None]
    ticket_taker: Mapped[str | None]
    """SHA-256 of what the process gave that changed the ticket for the lease; None before that."""
    place: Mapped[str | None]
    """Where it waits to begin, in words; None once it has."""
    worker_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workers.id", ondelete="SET NULL"), index=True)
    worker: Mapped[str | None]
    """Name of the worker that has it, or had it last."""
    secrets_taker: Mapped[str | None]
    """SHA-256 of what the process gave that was handed the secrets under this lease; None before that."""
    starts: Mapped[int] = mapped_column(default=0)
    """How often it was started since the run was submitted or retried."""
    lost: Mapped[int] = mapped_column(default=0)
    """How often in a row its executor failed (a node died, a scheduler ended it) and nothing was stored."""
    not_before: Mapped[datetime | None]
    """It waits until then: an executor that could not start it may be able to by that time."""
    handle: Mapped[dict[str, object] | None] = mapped_column(Json)
    """What the executor needs to find it again (local: pid and start time)."""
    progress: Mapped[StoredProgress | None] = mapped_column(Json)
    """Of one of several shards."""
    report: Mapped[dict[str, object] | None] = mapped_column(Json)
    """records.report.Report of one of several shards, while it goes on."""
    status: Mapped[str | None]
    """How it said that it ended (records.run.RunStatus)."""
    endpoint: Mapped[str] = mapped_column(default="")
    """Which model it asks, and where (`services.endpoints`)."""
    paused_until: Mapped[datetime | None] = mapped_column(index=True)
    """Until then that endpoint wants no more calls, by what it told this job."""


class RunEvent(Base):
    """A change of status, written with it."""

    __tablename__ = "run_events"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    before: Mapped[str | None]
    status: Mapped[str]
    reason: Mapped[str] = mapped_column(sa.Text, default="")


class RunLog(Base):
    """One line of a run's log (records.run.LogLine)."""

    __tablename__ = "run_logs"
    __table_args__ = (sa.Index("ix_run_logs_run_id_id", "run_id", "id"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"))
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    level: Mapped[str] = mapped_column(default="info")
    step: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class MetricPoint(Base):
    """One point of a curve (records.run.MetricPoint)."""

    __tablename__ = "metric_points"
    __table_args__ = (sa.UniqueConstraint("run_id", "key", "step"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    key: Mapped[str]
    step: Mapped[int]
    value: Mapped[float]
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)


class Rollout(Base):
    """One attempt at one row of a run. The unique key makes every rollout count once."""

    __tablename__ = "rollouts"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "step", "row_key", "attempt"),
        sa.Index("ix_rollouts_run_id_row_index_attempt", "run_id", "row_index", "attempt"),
    )

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[str]
    row_index: Mapped[int]
    """Where the row stood in the dataset: by this and the attempt, people and clients ask for a rollout."""
    step: Mapped[int] = mapped_column(default=0)
    """Of a training run; 0 elsewhere."""
    row_key: Mapped[str]
    """records.keys: which row it is, wherever it stands."""
    attempt: Mapped[int]
    status: Mapped[str]
    """records.rollout.RolloutStatus."""
    reward: Mapped[float | None]
    """The first score; None when there is none or it failed."""
    tokens: Mapped[int] = mapped_column(default=0)
    duration_ms: Mapped[float] = mapped_column(default=0.0)
    failure_category: Mapped[str | None]
    body: Mapped[str] = mapped_column(sa.Text, deferred=True)
    """records.rollout.Rollout as JSON text; loaded only when asked for."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Annotation(Base):
    """What a person said about a rollout."""

    __tablename__ = "annotations"

    id: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    author_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    step: Mapped[int]
    row_index: Mapped[int]
    attempt: Mapped[int]
    body: Mapped[str] = mapped_column(sa.Text)
    """records.annotation.Annotation as JSON text."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Checkpoint(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (sa.UniqueConstraint("run_id", "step"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    step: Mapped[int]
    status: Mapped[str]
    base_model: Mapped[str]
    path: Mapped[str]
    reward: Mapped[float | None]
    details: Mapped[dict[str, object] | None] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class Import(Base):
    """One upload of a local run. Its files lie in the object folder until the run holds what they said."""

    __tablename__ = "imports"
    __table_args__ = (
        sa.Index("ix_imports_digest", "workspace_id", "digest"),
        sa.Index("ix_imports_local_run", "workspace_id", "local_run_id"),
    )

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"))
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The run it became; None before that, and after that run was deleted."""
    digest: Mapped[str]
    """`manifest_digest`, as the client made it: the same upload is the same session."""
    local_run_id: Mapped[str]
    status: Mapped[str] = mapped_column(default="uploading")
    """`uploading`, `finalized`, or `replaced` by a later upload of the same run."""
    reimport: Mapped[bool] = mapped_column(default=False)
    """Put it in the place of an earlier upload of the same run."""
    run: Mapped[dict[str, object]] = mapped_column(Json)
    """`run` of the manifest, checked."""
    provenance: Mapped[dict[str, object]] = mapped_column(Json)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    expires_at: Mapped[datetime]
    """An unfinished session is forgotten then."""


class ImportFile(Base):
    """One file that an upload announced."""

    __tablename__ = "import_files"
    __table_args__ = (sa.UniqueConstraint("import_id", "path"),)

    import_id: Mapped[str] = mapped_column(sa.ForeignKey("imports.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    """Its place in the manifest, and its name on disk."""
    path: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str]
    uploaded: Mapped[bool] = mapped_column(default=False)
