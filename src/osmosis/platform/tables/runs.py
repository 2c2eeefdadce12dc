from datetime import datetime
from itertools import accumulate
from typing import ClassVar, Literal, TypedDict

import sqlalchemy as sa
from sqlalchemy.ext.associationproxy import AssociationProxy, association_proxy
from sqlalchemy.orm import Mapped, mapped_column, relationship

from osmosis.base.jsonable import JsonObject
from osmosis.datasets.row_file import RowPart
from osmosis.platform.tables.base import Base, Dated, Json, NumberedRow, Row, Updated
from osmosis.platform.tables.data import Repository
from osmosis.platform.tables.people import OwnedRow, User, Workspace
from osmosis.records.base import utc_now
from osmosis.records.run.status import JobKind


class StoredExperiment(TypedDict, total=False):
    rollout: str
    entrypoint: str
    command: str
    model_path: str
    dataset: str


class StoredEvaluation(TypedDict, total=False):
    n: int
    batch_size: int
    pass_threshold: float
    max_cost: float | None
    max_tokens_total: int | None


class StoredTraining(TypedDict, total=False):
    rollout_batch_size: int
    n_samples_per_prompt: int


class StoredAdvanced(TypedDict, total=False):
    tune: str
    shards: int | str
    base_url: str | None


class StoredConfig(TypedDict, total=False):
    experiment: StoredExperiment
    evaluation: StoredEvaluation
    training: StoredTraining
    advanced: StoredAdvanced
    optimize: dict[str, object]
    env: dict[str, str]
    notify: dict[str, object]


class StoredEnvironment(TypedDict):
    """One of several whose rows a training run has, one after the other."""

    prefix: str  # the keys of its rows begin with it
    dataset: str
    dataset_id: str | None
    path: str
    sha256: str | None
    rows: int


class StoredProgress(TypedDict, total=False):
    stage: str
    completed: int
    total: int
    in_flight: dict[str, int]
    sandbox: str
    endpoint: str


class Imported(TypedDict):
    local_run_id: str
    name: str
    provenance: dict[str, object]


class Work(Updated, OwnedRow):
    __abstract__ = True
    reference_column: ClassVar[str]

    name: Mapped[str]
    status: Mapped[str]  # records.run.status.RunStatus; changed only by `runs.lifecycle.switch_status`
    progress: Mapped[StoredProgress | None] = mapped_column(Json)
    failure: Mapped[dict[str, object] | None] = mapped_column(Json)
    stop_requested_at: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]

    @property
    def reference(self) -> dict[str, str]:
        return {self.reference_column: self.id}


class Deployment(Work):
    __tablename__ = "deployments"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)
    reference_column = "deployment_id"


class Merge(Work):
    """An adapter added into its base model; `id` and `name` are those of the new base model."""

    __tablename__ = "merges"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)
    reference_column = "merge_id"

    adapter: Mapped[str]
    dtype: Mapped[Literal["auto", "fp32", "bf16"]] = mapped_column(sa.String())


class Run(Work):
    __tablename__ = "runs"
    __table_args__ = (
        sa.UniqueConstraint("workspace_id", "kind", "name"),
        sa.Index("ix_runs_queue", "status", "created_at"),
        sa.Index("ix_runs_listed", "workspace_id", "kind", "created_at"),
        sa.Index("ix_runs_created_at", "created_at"),
    )
    reference_column = "run_id"

    repository_id: Mapped[str | None] = mapped_column(sa.ForeignKey("repositories.id", ondelete="SET NULL"))
    repository: Mapped[Repository | None] = relationship(viewonly=True)
    dataset_id: Mapped[str | None] = mapped_column(sa.ForeignKey("datasets.id", ondelete="SET NULL"), index=True)
    kind: Mapped[str]
    config: Mapped[StoredConfig] = mapped_column(Json)
    rollout: Mapped[str]
    model_path: Mapped[str]
    dataset: Mapped[str]
    dataset_path: Mapped[str]
    dataset_sha256: Mapped[str | None]
    dataset_rows: Mapped[int | None]
    environments: Mapped[list[StoredEnvironment] | None] = mapped_column(Json)
    """Unset for a single one. The columns of the dataset are those of the first, but for the number of rows."""
    branch: Mapped[str | None]
    commit_sha: Mapped[str]
    rows: Mapped[list[int]] = mapped_column(Json, deferred=True)  # indices of the selected rows; loaded only on request
    sampled_rows: Mapped[int] = mapped_column(default=0)
    sample_seed: Mapped[int | None] = mapped_column(sa.BigInteger)
    secret_scopes: Mapped[dict[str, str]] = mapped_column(Json)
    report: Mapped[dict[str, object] | None] = mapped_column(Json)
    optimization: Mapped[dict[str, object] | None] = mapped_column(Json, deferred=True)
    retries: Mapped[int] = mapped_column(default=0)
    priority: Mapped[int] = mapped_column(default=0)
    imported: Mapped[Imported | None] = mapped_column(Json)
    snapshot: Mapped[dict[str, object] | None] = mapped_column(Json)
    quarantine: Mapped[dict[str, object] | None] = mapped_column(Json)
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    note: Mapped[str] = mapped_column(sa.Text, default="")
    pinned: Mapped[bool] = mapped_column(default=False)

    @property
    def parts(self) -> list[StoredEnvironment]:
        dataset: StoredEnvironment = {
            "prefix": "", "dataset": self.dataset, "dataset_id": self.dataset_id, "path": self.dataset_path,
            "sha256": self.dataset_sha256, "rows": self.dataset_rows or 0,
        }  # fmt: skip
        return self.environments or [dataset]

    def list_row_parts(self) -> list[RowPart]:
        starts = accumulate((part["rows"] for part in self.parts), initial=0)
        return [
            (part["path"], start, part["prefix"], range(part["rows"]) if self.environments else self.rows)
            for part, start in zip(self.parts, starts, strict=False)
        ]


WORK_TABLES: tuple[type[Work], ...] = (Run, Deployment, Merge)


class QueueState:
    """The states of `scheduling.transitions`. WAITING: for a worker. HELD: leased."""

    WAITING = "waiting"
    HELD = "held"
    OVER = "over"


class WorkReference:
    run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"))
    deployment_id: Mapped[str | None] = mapped_column(sa.ForeignKey("deployments.id", ondelete="CASCADE"), index=True)
    merge_id: Mapped[str | None] = mapped_column(sa.ForeignKey("merges.id", ondelete="CASCADE"), index=True)

    @property
    def work_id(self) -> str:
        return self.run_id or self.deployment_id or self.merge_id or ""


class Job(WorkReference, Row):
    __tablename__ = "jobs"
    __table_args__ = (sa.UniqueConstraint("run_id", "shard"), sa.Index("ix_jobs_queue", "state", "lease_until"))

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    kind: Mapped[JobKind] = mapped_column(sa.String())
    priority: Mapped[int] = mapped_column(default=0)
    work_created_at: Mapped[datetime] = mapped_column(default=utc_now)
    """The oldest work of a workspace comes first, also when it is queued again."""
    shard: Mapped[int] = mapped_column(default=0)
    shards: Mapped[int] = mapped_column(default=1, server_default="1")
    state: Mapped[str] = mapped_column(default=QueueState.WAITING)
    rollouts: Mapped[int] = mapped_column(default=1)
    """How many it may have in flight; this and the three below count against the quotas."""
    cpus: Mapped[float] = mapped_column(default=0.0)
    memory_mb: Mapped[int] = mapped_column(default=0)
    gpus: Mapped[int] = mapped_column(default=0)
    lease_hash: Mapped[str | None] = mapped_column(unique=True)
    lease_id: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    ticket_hash: Mapped[str | None] = mapped_column(unique=True)
    """SHA-256 of the ticket that its executor got in place of a lease."""
    ticket_until: Mapped[datetime | None]
    ticket_taker: Mapped[str | None]
    place: Mapped[str | None]  # Position in a scheduler's queue, in words; None once it has started
    worker_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workers.id", ondelete="SET NULL"), index=True)
    worker: Mapped[str | None]
    secrets_taker: Mapped[str | None]
    starts: Mapped[int] = mapped_column(default=0)
    lost: Mapped[int] = mapped_column(default=0)
    """Losses to its executor (a node died, a scheduler ended it) since a rollout was stored."""
    not_before: Mapped[datetime | None]  # The earliest next start, after its executor refused one
    handle: Mapped[dict[str, object] | None] = mapped_column(Json)
    """Data with which its executor finds it again (local: pid and start time)."""
    progress: Mapped[StoredProgress | None] = mapped_column(Json)
    report: Mapped[dict[str, object] | None] = mapped_column(Json)
    status: Mapped[str | None]
    endpoint: Mapped[str] = mapped_column(default="")
    paused_until: Mapped[datetime | None] = mapped_column(index=True)


class BenchmarkRun(Dated, OwnedRow):
    __tablename__ = "benchmark_runs"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    name: Mapped[str]
    benchmark: Mapped[str]
    config: Mapped[dict[str, object]] = mapped_column(Json)
    run_ids: Mapped[list[str]] = mapped_column(Json)
    """In the order of the config's agents; a run may have been deleted since."""


class Notice(Dated, Row):
    """A message of `[notify]` that is not delivered yet; `target` is the secret that has the URL, or addresses."""

    __tablename__ = "notices"

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    owner_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    """The person whose secrets count besides the workspace's."""
    channel: Mapped[str]
    target: Mapped[str]
    signing_secret: Mapped[str | None]
    body: Mapped[dict[str, object]] = mapped_column(Json)
    tries: Mapped[int] = mapped_column(default=0)
    due_at: Mapped[datetime] = mapped_column(default=utc_now, index=True)


class ShareLink(Dated, Row):
    """A link with which anybody may read a run."""

    __tablename__ = "share_links"

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    creator: Mapped[User | None] = relationship(viewonly=True)
    creator_name: AssociationProxy[str | None] = association_proxy("creator", "name")
    hash: Mapped[str] = mapped_column(unique=True)
    expires_at: Mapped[datetime]


class Schedule(Dated, OwnedRow):
    """An evaluation that the platform submits again and again."""

    __tablename__ = "schedules"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    name: Mapped[str]
    every: Mapped[str]
    config: Mapped[StoredConfig] = mapped_column(Json)
    tags: Mapped[list[str]] = mapped_column(Json, default=list)
    next_at: Mapped[datetime] = mapped_column(index=True)
    last_run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="SET NULL"))
    last_run: Mapped[Run | None] = relationship(viewonly=True)
    last_run_name: AssociationProxy[str | None] = association_proxy("last_run", "name")
    last_run_status: AssociationProxy[str | None] = association_proxy("last_run", "status")
    error: Mapped[str] = mapped_column(sa.Text, default="")
    """The reason that there was no run at the last time, if there was none."""


class Decision(Updated, OwnedRow):
    __tablename__ = "decisions"
    __table_args__ = (sa.UniqueConstraint("workspace_id", "name"),)

    name: Mapped[str]
    status: Mapped[str] = mapped_column(default="running", index=True)
    problem: Mapped[str] = mapped_column(sa.Text, default="")
    configs: Mapped[dict[str, JsonObject]] = mapped_column(Json)  # by the name of the arm's run, pinned to one commit
    study: Mapped[dict[str, object]] = mapped_column(Json)
    run_ids: Mapped[dict[str, list[str]]] = mapped_column(Json)
    awaited: Mapped[list[str]] = mapped_column(Json)


class RunEvent(NumberedRow):
    __tablename__ = "run_events"

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    before: Mapped[str | None]
    status: Mapped[str]
    reason: Mapped[str] = mapped_column(sa.Text, default="")


class RunLog(WorkReference, NumberedRow):
    __tablename__ = "run_logs"
    __table_args__ = (sa.Index("ix_run_logs_run_id_id", "run_id", "id"),)

    timestamp: Mapped[datetime] = mapped_column(default=utc_now)
    level: Mapped[str] = mapped_column(default="info")
    step: Mapped[str] = mapped_column(default="")
    message: Mapped[str] = mapped_column(sa.Text)
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class MetricPoint(NumberedRow):
    __tablename__ = "metric_points"
    __table_args__ = (sa.UniqueConstraint("run_id", "key", "step"),)

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    key: Mapped[str]
    step: Mapped[int]
    value: Mapped[float]
    timestamp: Mapped[datetime] = mapped_column(default=utc_now)


class Rollout(Dated, NumberedRow):
    __tablename__ = "rollouts"
    __table_args__ = (
        sa.UniqueConstraint("run_id", "step", "row_key", "attempt"),
        sa.Index("ix_rollouts_run_id_row_index_attempt", "run_id", "row_index", "attempt"),
    )

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    rollout_id: Mapped[str]
    row_index: Mapped[int]  # index of the row in the dataset; with the attempt, a rollout's address for people
    step: Mapped[int] = mapped_column(default=0)
    row_key: Mapped[str]
    attempt: Mapped[int]
    status: Mapped[str]
    reward: Mapped[float | None]  # the first score; None for a failure or without scores
    tokens: Mapped[int] = mapped_column(default=0)
    duration_ms: Mapped[float] = mapped_column(default=0.0)
    failure_category: Mapped[str | None]
    body: Mapped[str] = mapped_column(sa.Text, deferred=True)
    """records.run.rollout.Rollout as JSON; loaded only on request."""


class Annotation(Dated, NumberedRow):
    __tablename__ = "annotations"

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    author_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    step: Mapped[int]
    row_index: Mapped[int]
    attempt: Mapped[int]
    body: Mapped[str] = mapped_column(sa.Text)


class Checkpoint(Dated, Row):
    __tablename__ = "checkpoints"
    __table_args__ = (sa.UniqueConstraint("run_id", "step"),)

    run_id: Mapped[str] = mapped_column(sa.ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    name: Mapped[str]
    step: Mapped[int]
    status: Mapped[str]
    base_model: Mapped[str]
    path: Mapped[str]
    reward: Mapped[float | None]
    details: Mapped[dict[str, object] | None] = mapped_column(Json)


class Import(Dated, Row):
    __tablename__ = "imports"
    __table_args__ = (
        sa.Index("ix_imports_digest", "workspace_id", "digest"),
        sa.Index("ix_imports_local_run", "workspace_id", "local_run_id"),
    )

    workspace_id: Mapped[str] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"))
    creator_id: Mapped[str | None] = mapped_column(sa.ForeignKey("users.id", ondelete="SET NULL"))
    creator: Mapped[User | None] = relationship(viewonly=True)
    run_id: Mapped[str | None] = mapped_column(sa.ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The run it became; None before, and after that run was deleted."""
    digest: Mapped[str]  # the client's `manifest_digest`: the same upload gets the same session
    local_run_id: Mapped[str]
    status: Mapped[str] = mapped_column(default="uploading")
    reimport: Mapped[bool] = mapped_column(default=False)
    run: Mapped[dict[str, object]] = mapped_column(Json)
    provenance: Mapped[dict[str, object]] = mapped_column(Json)
    expires_at: Mapped[datetime]


class ImportFile(Base):
    __tablename__ = "import_files"
    __table_args__ = (sa.UniqueConstraint("import_id", "path"),)

    import_id: Mapped[str] = mapped_column(sa.ForeignKey("imports.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str]
    size: Mapped[int] = mapped_column(sa.BigInteger)
    sha256: Mapped[str]
    uploaded: Mapped[bool] = mapped_column(default=False)


class Worker(Dated, Row):
    __tablename__ = "workers"

    name: Mapped[str] = mapped_column(index=True)
    token_id: Mapped[str | None] = mapped_column(sa.ForeignKey("tokens.id", ondelete="SET NULL"))
    workspace_id: Mapped[str | None] = mapped_column(sa.ForeignKey("workspaces.id", ondelete="CASCADE"), index=True)
    workspace: Mapped[Workspace | None] = relationship(viewonly=True)
    embedded: Mapped[bool] = mapped_column(default=False)
    machine: Mapped[str]
    version: Mapped[str]
    protocol: Mapped[int]
    executor: Mapped[str]
    kinds: Mapped[list[str]] = mapped_column(Json)
    labels: Mapped[dict[str, str]] = mapped_column(Json)
    resources: Mapped[dict[str, float]] = mapped_column(Json)
    max_jobs: Mapped[int]
    slots: Mapped[int] = mapped_column(default=0)
    sandbox: Mapped[str]
    draining: Mapped[bool] = mapped_column(default=False)
    removed_at: Mapped[datetime | None]
    last_seen: Mapped[datetime] = mapped_column(default=utc_now, index=True)
