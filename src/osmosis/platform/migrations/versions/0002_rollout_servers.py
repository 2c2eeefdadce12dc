"""rollout servers that registered."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables import UtcDateTime

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rollout_servers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=True),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=False),
        sa.Column("agent_loop_name", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=True),
        sa.Column("nonce", sa.LargeBinary(), nullable=True),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=True),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("last_seen", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["owner_id"], ["users.id"], name=op.f("fk_rollout_servers_owner_id_users"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["workspace_id"],
            ["workspaces.id"],
            name=op.f("fk_rollout_servers_workspace_id_workspaces"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rollout_servers")),
        sa.UniqueConstraint("owner_id", "host", "port", name=op.f("uq_rollout_servers_owner_id_host_port")),
    )
    with op.batch_alter_table("rollout_servers", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_rollout_servers_last_seen"), ["last_seen"], unique=False)
        batch_op.create_index(batch_op.f("ix_rollout_servers_workspace_id"), ["workspace_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("rollout_servers", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_rollout_servers_workspace_id"))
        batch_op.drop_index(batch_op.f("ix_rollout_servers_last_seen"))

    op.drop_table("rollout_servers")
