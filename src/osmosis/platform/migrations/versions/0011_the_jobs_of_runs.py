"""Jobs get rows of their own, beside their runs: a run may have many, and each has a lease."""

from __future__ import annotations

import uuid

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json, UtcDateTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LEASE = ("lease_hash", "lease_until", "worker", "starts", "handle")
RUNS = sa.table(
    "runs",
    *(sa.column(name) for name in ("id", "status", "lease_hash", "worker", "starts")),
    sa.column("imported", Json),
    sa.column("lease_until", UtcDateTime()),
    sa.column("handle", Json),
)


def upgrade() -> None:
    jobs = op.create_table(
        "jobs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("lease_hash", sa.String()),
        sa.Column("lease_until", UtcDateTime()),
        sa.Column("worker", sa.String()),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.Column("handle", Json),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_jobs_run_id_runs", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("lease_hash", name="uq_jobs_lease_hash"),
        sa.UniqueConstraint("run_id", "shard", name="uq_jobs_run_id_shard"),
    )
    op.create_index("ix_jobs_run_id", "jobs", ["run_id"])
    op.create_index("ix_jobs_queue", "jobs", ["state", "lease_until"])
    bind = op.get_bind()
    made = [_job(run) for run in bind.execute(sa.select(RUNS).where(RUNS.c.imported.is_(None))).mappings()]
    if made:
        bind.execute(jobs.insert(), made)
    with op.batch_alter_table("runs") as batch:
        batch.drop_index("ix_runs_queue")
        for name in LEASE:
            batch.drop_column(name)
        batch.create_index("ix_runs_queue", ["status", "created_at"])


def _job(run: sa.RowMapping) -> dict[str, object]:
    if run["status"] == "pending":
        state = "waiting"
    elif run["status"] == "running":
        state = "held" if run["lease_hash"] else "waiting"
    else:
        state = "over"
    return {"id": uuid.uuid4().hex, "run_id": run["id"], "shard": 0, "state": state, **{n: run[n] for n in LEASE}}
