"""Tokens have scopes, a workspace and the token they were made with; the first person runs the platform.

Tokens and sessions of earlier versions go on and may what they could: sessions ask the API, all others also git.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

TOKENS = sa.table("tokens", sa.column("kind"), sa.column("scopes"))
USERS = sa.table("users", sa.column("id"), sa.column("created_at"), sa.column("operator"))


def upgrade() -> None:
    with op.batch_alter_table("users") as batch:
        batch.add_column(sa.Column("operator", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("tokens") as batch:
        batch.add_column(sa.Column("scopes", sa.String(), nullable=False, server_default="api git"))
        batch.add_column(sa.Column("workspace_id", sa.String()))
        batch.add_column(sa.Column("parent_id", sa.String()))
        batch.create_foreign_key(
            "fk_tokens_workspace_id_workspaces", "workspaces", ["workspace_id"], ["id"], ondelete="CASCADE"
        )
        batch.create_foreign_key("fk_tokens_parent_id_tokens", "tokens", ["parent_id"], ["id"], ondelete="SET NULL")
        batch.create_index("ix_tokens_workspace_id", ["workspace_id"])
        batch.create_index("ix_tokens_parent_id", ["parent_id"])
    with op.batch_alter_table("device_codes") as batch:
        batch.add_column(sa.Column("maker_id", sa.String()))
        batch.create_foreign_key("fk_device_codes_maker_id_tokens", "tokens", ["maker_id"], ["id"], ondelete="CASCADE")
    for kind, scopes in (("session", "api"), ("device", "api git inference")):
        op.execute(sa.update(TOKENS).where(TOKENS.c.kind == kind).values(scopes=scopes))
    first = sa.select(USERS.c.id).order_by(USERS.c.created_at, USERS.c.id).limit(1).scalar_subquery()
    op.execute(sa.update(USERS).where(USERS.c.id == first).values(operator=True))
    with op.batch_alter_table("users") as batch:
        batch.alter_column("operator", existing_type=sa.Boolean(), existing_nullable=False, server_default=None)
    with op.batch_alter_table("tokens") as batch:
        batch.alter_column("scopes", existing_type=sa.String(), existing_nullable=False, server_default=None)
