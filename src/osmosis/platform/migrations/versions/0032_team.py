"""Add what a team has besides: messages that are not delivered yet, links to runs, schedules."""

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import UtcDateTime

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    def refer(name: str, table: str, ondelete: str = "CASCADE", *, nullable: bool = False) -> sa.Column[str]:
        return sa.Column(name, sa.String(), sa.ForeignKey(f"{table}.id", ondelete=ondelete), nullable=nullable)

    op.create_table(
        "notices",
        sa.Column("id", sa.String(), primary_key=True),
        refer("workspace_id", "workspaces"),
        refer("run_id", "runs", nullable=True),
        refer("owner_id", "users", "SET NULL", nullable=True),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("signing_secret", sa.String(), nullable=True),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
    )
    op.create_table(
        "share_links",
        sa.Column("id", sa.String(), primary_key=True),
        refer("run_id", "runs"),
        refer("creator_id", "users", "SET NULL", nullable=True),
        sa.Column("hash", sa.String(), nullable=False, unique=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("revoked_at", UtcDateTime(), nullable=True),
    )
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(), primary_key=True),
        refer("repository_id", "repositories"),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("every", sa.String(), nullable=False),
        sa.Column("next_at", UtcDateTime(), nullable=True),
        sa.Column("last_at", UtcDateTime(), nullable=True),
        refer("last_run_id", "runs", "SET NULL", nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.UniqueConstraint("repository_id", "name"),
    )
    for table, columns in (("notices", ("workspace_id", "run_id", "due_at")), ("share_links", ("run_id",))):
        for column in columns:
            op.create_index(f"ix_{table}_{column}", table, [column])
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])
