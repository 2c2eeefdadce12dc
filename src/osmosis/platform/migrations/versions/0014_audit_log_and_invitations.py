"""The audit log, and invitations of people who have no account yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables.base import Json, UtcDateTime

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "invitations",
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("email", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("inviter_id", sa.String()),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("workspace_id", "email", name="pk_invitations"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_invitations_workspace_id_workspaces", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["inviter_id"], ["users.id"], name="fk_invitations_inviter_id_users", ondelete="SET NULL"
        ),
    )
    op.create_index("ix_invitations_email", "invitations", ["email"])
    op.create_table(
        "audit_log",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("timestamp", UtcDateTime(), nullable=False),
        sa.Column("workspace_id", sa.String()),
        sa.Column("actor_id", sa.String()),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("details", Json),
        sa.PrimaryKeyConstraint("id", name="pk_audit_log"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name="fk_audit_log_workspace_id_workspaces", ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["actor_id"], ["users.id"], name="fk_audit_log_actor_id_users", ondelete="SET NULL"),
    )
    op.create_index("ix_audit_log_timestamp", "audit_log", ["timestamp"])
    op.create_index("ix_audit_log_actor_id", "audit_log", ["actor_id"])
    op.create_index("ix_audit_log_workspace_id_id", "audit_log", ["workspace_id", "id"])
