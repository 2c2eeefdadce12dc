"""An index in the order of lists of runs: without it a list of ten reads every run of its workspace."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_runs_listed", "runs", ["workspace_id", "kind", "created_at"])
