"""local runs that are taken in; which run a secret was last given to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables import UtcDateTime

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("imported", sa.JSON(none_as_null=True), nullable=True))
    op.add_column("secrets", sa.Column("last_used_at", UtcDateTime(), nullable=True))
    op.add_column("secrets", sa.Column("last_used_by", sa.String(), nullable=True))
    op.create_table(
        "imports",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("creator_id", sa.String(), nullable=True),
        sa.Column("run_id", sa.String(), nullable=True),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("local_run_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("reimport", sa.Boolean(), nullable=False),
        sa.Column("run", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("provenance", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["creator_id"], ["users.id"], name=op.f("fk_imports_creator_id_users"), ondelete="SET NULL"
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_imports_run_id_runs"), ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["workspace_id"], ["workspaces.id"], name=op.f("fk_imports_workspace_id_workspaces"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_imports")),
    )
    op.create_index(op.f("ix_imports_run_id"), "imports", ["run_id"])
    op.create_index("ix_imports_digest", "imports", ["workspace_id", "digest"])
    op.create_index("ix_imports_local_run", "imports", ["workspace_id", "local_run_id"])
    op.create_table(
        "import_files",
        sa.Column("import_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("uploaded", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["import_id"], ["imports.id"], name=op.f("fk_import_files_import_id_imports"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("import_id", "number", name=op.f("pk_import_files")),
        sa.UniqueConstraint("import_id", "path", name=op.f("uq_import_files_import_id_path")),
    )


def downgrade() -> None:
    op.drop_table("import_files")
    op.drop_table("imports")
    op.drop_column("secrets", "last_used_by")
    op.drop_column("secrets", "last_used_at")
    op.drop_column("runs", "imported")
