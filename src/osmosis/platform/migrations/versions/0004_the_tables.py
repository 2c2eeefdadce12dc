"""The tables as 1.0 has them.

Data folders of 1.0 are at this revision, which is why it keeps its number; what came before was never released
and is not read. Later changes are migrations of their own, each with the next number.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from osmosis.platform.tables import UtcDateTime

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None

METADATA = sa.MetaData()

sa.Table(
    "users",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("handle", sa.String(), nullable=False),
    sa.Column("email", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.PrimaryKeyConstraint("id", name="pk_users"),
    sa.UniqueConstraint("email", name="uq_users_email"),
    sa.UniqueConstraint("handle", name="uq_users_handle"),
)
sa.Table(
    "workspaces",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.PrimaryKeyConstraint("id", name="pk_workspaces"),
    sa.UniqueConstraint("name", name="uq_workspaces_name"),
)
sa.Table(
    "datasets",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("creator_id", sa.String()),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("format", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("size", sa.BigInteger(), nullable=False),
    sa.Column("row_count", sa.Integer()),
    sa.Column("sha256", sa.String()),
    sa.Column("path", sa.String()),
    sa.Column("preview", sa.JSON(none_as_null=True)),
    sa.Column("error", sa.Text()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("updated_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["creator_id"], ["users.id"], name="fk_datasets_creator_id_users", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_datasets_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_datasets"),
    sa.UniqueConstraint("workspace_id", "name", name="uq_datasets_workspace_id_name"),
    sa.Index("ix_datasets_workspace_id", "workspace_id"),
)
sa.Table(
    "device_codes",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("device_hash", sa.String(), nullable=False),
    sa.Column("user_code", sa.String(), nullable=False),
    sa.Column("device_name", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("user_id", sa.String()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("expires_at", UtcDateTime(), nullable=False),
    sa.Column("last_polled_at", UtcDateTime()),
    sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_device_codes_user_id_users", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_device_codes"),
    sa.UniqueConstraint("device_hash", name="uq_device_codes_device_hash"),
    sa.UniqueConstraint("user_code", name="uq_device_codes_user_code"),
)
sa.Table(
    "members",
    METADATA,
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("user_id", sa.String(), nullable=False),
    sa.Column("role", sa.String(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_members_user_id_users", ondelete="CASCADE"),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_members_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("workspace_id", "user_id", name="pk_members"),
    sa.Index("ix_members_user_id", "user_id"),
)
sa.Table(
    "repositories",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("kind", sa.String(), nullable=False),
    sa.Column("full_name", sa.String(), nullable=False),
    sa.Column("url", sa.String(), nullable=False),
    sa.Column("path", sa.String(), nullable=False),
    sa.Column("default_branch", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("last_synced_commit", sa.String()),
    sa.Column("last_synced_at", UtcDateTime()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_repositories_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_repositories"),
    sa.UniqueConstraint("workspace_id", name="uq_repositories_workspace_id"),
    sa.Index("ix_repositories_full_name", "full_name"),
)
sa.Table(
    "rollout_servers",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String()),
    sa.Column("owner_id", sa.String(), nullable=False),
    sa.Column("host", sa.String(), nullable=False),
    sa.Column("port", sa.Integer(), nullable=False),
    sa.Column("agent_loop_name", sa.String(), nullable=False),
    sa.Column("key_id", sa.String()),
    sa.Column("nonce", sa.LargeBinary()),
    sa.Column("ciphertext", sa.LargeBinary()),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("error", sa.Text()),
    sa.Column("last_seen", UtcDateTime(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name="fk_rollout_servers_owner_id_users", ondelete="CASCADE"),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_rollout_servers_workspace_id_workspaces", ondelete="SET NULL"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_rollout_servers"),
    sa.UniqueConstraint("owner_id", "host", "port", name="uq_rollout_servers_owner_id_host_port"),
    sa.Index("ix_rollout_servers_last_seen", "last_seen"),
    sa.Index("ix_rollout_servers_workspace_id", "workspace_id"),
)
sa.Table(
    "secrets",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("scope", sa.String(), nullable=False),
    sa.Column("owner_id", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("version", sa.Integer(), nullable=False),
    sa.Column("key_id", sa.String(), nullable=False),
    sa.Column("nonce", sa.LargeBinary(), nullable=False),
    sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
    sa.Column("creator_id", sa.String()),
    sa.Column("updater_id", sa.String()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("updated_at", UtcDateTime(), nullable=False),
    sa.Column("last_used_at", UtcDateTime()),
    sa.Column("last_used_by", sa.String()),
    sa.ForeignKeyConstraint(["creator_id"], ["users.id"], name="fk_secrets_creator_id_users", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(["updater_id"], ["users.id"], name="fk_secrets_updater_id_users", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_secrets_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_secrets"),
    sa.UniqueConstraint(
        "workspace_id", "scope", "owner_id", "name", name="uq_secrets_workspace_id_scope_owner_id_name"
    ),
    sa.Index("ix_secrets_workspace_id", "workspace_id"),
)
sa.Table(
    "tokens",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("user_id", sa.String(), nullable=False),
    sa.Column("hash", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("kind", sa.String(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("expires_at", UtcDateTime()),
    sa.Column("last_used_at", UtcDateTime()),
    sa.Column("revoked_at", UtcDateTime()),
    sa.ForeignKeyConstraint(["user_id"], ["users.id"], name="fk_tokens_user_id_users", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    sa.Index("ix_tokens_user_id", "user_id"),
)
sa.Table(
    "dataset_logs",
    METADATA,
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("dataset_id", sa.String(), nullable=False),
    sa.Column("timestamp", UtcDateTime(), nullable=False),
    sa.Column("level", sa.String(), nullable=False),
    sa.Column("step", sa.String(), nullable=False),
    sa.Column("message", sa.Text(), nullable=False),
    sa.Column("details", sa.JSON(none_as_null=True)),
    sa.ForeignKeyConstraint(
        ["dataset_id"], ["datasets.id"], name="fk_dataset_logs_dataset_id_datasets", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_dataset_logs"),
    sa.Index("ix_dataset_logs_dataset_id", "dataset_id"),
)
sa.Table(
    "runs",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("repository_id", sa.String()),
    sa.Column("dataset_id", sa.String()),
    sa.Column("creator_id", sa.String()),
    sa.Column("kind", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("rollout", sa.String(), nullable=False),
    sa.Column("model_path", sa.String(), nullable=False),
    sa.Column("dataset", sa.String(), nullable=False),
    sa.Column("dataset_path", sa.String(), nullable=False),
    sa.Column("dataset_sha256", sa.String()),
    sa.Column("dataset_rows", sa.Integer()),
    sa.Column("branch", sa.String()),
    sa.Column("commit_sha", sa.String(), nullable=False),
    sa.Column("rows", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("sampled_rows", sa.Integer(), nullable=False),
    sa.Column("sample_seed", sa.BigInteger()),
    sa.Column("secret_scopes", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("progress", sa.JSON(none_as_null=True)),
    sa.Column("report", sa.JSON(none_as_null=True)),
    sa.Column("failure", sa.JSON(none_as_null=True)),
    sa.Column("retries", sa.Integer(), nullable=False),
    sa.Column("imported", sa.JSON(none_as_null=True)),
    sa.Column("lease_hash", sa.String()),
    sa.Column("lease_until", UtcDateTime()),
    sa.Column("worker", sa.String()),
    sa.Column("starts", sa.Integer(), nullable=False),
    sa.Column("handle", sa.JSON(none_as_null=True)),
    sa.Column("stop_requested_at", UtcDateTime()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("updated_at", UtcDateTime(), nullable=False),
    sa.Column("started_at", UtcDateTime()),
    sa.Column("completed_at", UtcDateTime()),
    sa.ForeignKeyConstraint(["creator_id"], ["users.id"], name="fk_runs_creator_id_users", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_runs_dataset_id_datasets", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(
        ["repository_id"], ["repositories.id"], name="fk_runs_repository_id_repositories", ondelete="SET NULL"
    ),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_runs_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_runs"),
    sa.UniqueConstraint("workspace_id", "kind", "name", name="uq_runs_workspace_id_kind_name"),
    sa.Index("ix_runs_created_at", "created_at"),
    sa.Index("ix_runs_dataset_id", "dataset_id"),
    sa.Index("ix_runs_queue", "status", "lease_until", "created_at"),
    sa.Index("ix_runs_workspace_id", "workspace_id"),
)
sa.Table(
    "sync_events",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("repository_id", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("branch", sa.String(), nullable=False),
    sa.Column("commit_sha", sa.String(), nullable=False),
    sa.Column("author", sa.String(), nullable=False),
    sa.Column("message", sa.Text(), nullable=False),
    sa.Column("rollouts_found", sa.Integer(), nullable=False),
    sa.Column("error", sa.Text()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("finished_at", UtcDateTime()),
    sa.ForeignKeyConstraint(
        ["repository_id"], ["repositories.id"], name="fk_sync_events_repository_id_repositories", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_sync_events"),
    sa.Index("ix_sync_events_created_at", "created_at"),
    sa.Index("ix_sync_events_repository_id", "repository_id"),
)
sa.Table(
    "synced_rollouts",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("repository_id", sa.String(), nullable=False),
    sa.Column("branch", sa.String(), nullable=False),
    sa.Column("commit_sha", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("path", sa.String(), nullable=False),
    sa.Column("kind", sa.String(), nullable=False),
    sa.Column("description", sa.Text()),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(
        ["repository_id"], ["repositories.id"], name="fk_synced_rollouts_repository_id_repositories", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_synced_rollouts"),
    sa.UniqueConstraint("repository_id", "commit_sha", "name", name="uq_synced_rollouts_repository_id_commit_sha_name"),
    sa.Index("ix_synced_rollouts_commit_sha", "commit_sha"),
    sa.Index("ix_synced_rollouts_repository_id", "repository_id"),
)
sa.Table(
    "uploads",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("dataset_id", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("format", sa.String(), nullable=False),
    sa.Column("size", sa.BigInteger(), nullable=False),
    sa.Column("part_size", sa.BigInteger(), nullable=False),
    sa.Column("parts", sa.Integer(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("updated_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_uploads_dataset_id_datasets", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    sa.Index("ix_uploads_dataset_id", "dataset_id"),
)
sa.Table(
    "checkpoints",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("run_id", sa.String(), nullable=False),
    sa.Column("name", sa.String(), nullable=False),
    sa.Column("step", sa.Integer(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("base_model", sa.String(), nullable=False),
    sa.Column("path", sa.String(), nullable=False),
    sa.Column("reward", sa.Double()),
    sa.Column("details", sa.JSON(none_as_null=True)),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_checkpoints_run_id_runs", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_checkpoints"),
    sa.UniqueConstraint("run_id", "step", name="uq_checkpoints_run_id_step"),
    sa.Index("ix_checkpoints_run_id", "run_id"),
)
sa.Table(
    "imports",
    METADATA,
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("workspace_id", sa.String(), nullable=False),
    sa.Column("creator_id", sa.String()),
    sa.Column("run_id", sa.String()),
    sa.Column("digest", sa.String(), nullable=False),
    sa.Column("local_run_id", sa.String(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("reimport", sa.Boolean(), nullable=False),
    sa.Column("run", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("provenance", sa.JSON(none_as_null=True), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.Column("expires_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["creator_id"], ["users.id"], name="fk_imports_creator_id_users", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_imports_run_id_runs", ondelete="SET NULL"),
    sa.ForeignKeyConstraint(
        ["workspace_id"], ["workspaces.id"], name="fk_imports_workspace_id_workspaces", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("id", name="pk_imports"),
    sa.Index("ix_imports_digest", "workspace_id", "digest"),
    sa.Index("ix_imports_local_run", "workspace_id", "local_run_id"),
    sa.Index("ix_imports_run_id", "run_id"),
)
sa.Table(
    "metric_points",
    METADATA,
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("run_id", sa.String(), nullable=False),
    sa.Column("key", sa.String(), nullable=False),
    sa.Column("step", sa.Integer(), nullable=False),
    sa.Column("value", sa.Double(), nullable=False),
    sa.Column("timestamp", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_metric_points_run_id_runs", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_metric_points"),
    sa.UniqueConstraint("run_id", "key", "step", name="uq_metric_points_run_id_key_step"),
    sa.Index("ix_metric_points_run_id", "run_id"),
)
sa.Table(
    "rollouts",
    METADATA,
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("run_id", sa.String(), nullable=False),
    sa.Column("rollout_id", sa.String(), nullable=False),
    sa.Column("row_index", sa.Integer(), nullable=False),
    sa.Column("attempt", sa.Integer(), nullable=False),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("reward", sa.Double()),
    sa.Column("tokens", sa.Integer(), nullable=False),
    sa.Column("duration_ms", sa.Double(), nullable=False),
    sa.Column("failure_category", sa.String()),
    sa.Column("body", sa.Text(), nullable=False),
    sa.Column("created_at", UtcDateTime(), nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_rollouts_run_id_runs", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_rollouts"),
    sa.UniqueConstraint("run_id", "row_index", "attempt", name="uq_rollouts_run_id_row_index_attempt"),
    sa.Index("ix_rollouts_run_id", "run_id"),
)
sa.Table(
    "run_events",
    METADATA,
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("run_id", sa.String(), nullable=False),
    sa.Column("timestamp", UtcDateTime(), nullable=False),
    sa.Column("before", sa.String()),
    sa.Column("status", sa.String(), nullable=False),
    sa.Column("reason", sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_events_run_id_runs", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_run_events"),
    sa.Index("ix_run_events_run_id", "run_id"),
)
sa.Table(
    "run_logs",
    METADATA,
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("run_id", sa.String(), nullable=False),
    sa.Column("timestamp", UtcDateTime(), nullable=False),
    sa.Column("level", sa.String(), nullable=False),
    sa.Column("step", sa.String(), nullable=False),
    sa.Column("message", sa.Text(), nullable=False),
    sa.Column("details", sa.JSON(none_as_null=True)),
    sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_logs_run_id_runs", ondelete="CASCADE"),
    sa.PrimaryKeyConstraint("id", name="pk_run_logs"),
    sa.Index("ix_run_logs_run_id_id", "run_id", "id"),
)
sa.Table(
    "import_files",
    METADATA,
    sa.Column("import_id", sa.String(), nullable=False),
    sa.Column("number", sa.Integer(), nullable=False),
    sa.Column("path", sa.String(), nullable=False),
    sa.Column("size", sa.BigInteger(), nullable=False),
    sa.Column("sha256", sa.String(), nullable=False),
    sa.Column("uploaded", sa.Boolean(), nullable=False),
    sa.ForeignKeyConstraint(
        ["import_id"], ["imports.id"], name="fk_import_files_import_id_imports", ondelete="CASCADE"
    ),
    sa.PrimaryKeyConstraint("import_id", "number", name="pk_import_files"),
    sa.UniqueConstraint("import_id", "path", name="uq_import_files_import_id_path"),
)


def upgrade() -> None:
    METADATA.create_all(op.get_bind())


def downgrade() -> None:
    METADATA.drop_all(op.get_bind())
