BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE checkpoints (
	id VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	status VARCHAR NOT NULL, 
	base_model VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	reward DOUBLE, 
	details JSON, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_checkpoints PRIMARY KEY (id), 
	CONSTRAINT fk_checkpoints_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_checkpoints_run_id_step UNIQUE (run_id, step)
);
CREATE TABLE dataset_logs (
	id INTEGER NOT NULL, 
	dataset_id VARCHAR NOT NULL, 
	timestamp DATETIME NOT NULL, 
	level VARCHAR NOT NULL, 
	step VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	details JSON, 
	CONSTRAINT pk_dataset_logs PRIMARY KEY (id), 
	CONSTRAINT fk_dataset_logs_dataset_id_datasets FOREIGN KEY(dataset_id) REFERENCES datasets (id) ON DELETE CASCADE
);
CREATE TABLE datasets (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	creator_id VARCHAR, 
	name VARCHAR NOT NULL, 
	format VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	size BIGINT NOT NULL, 
	row_count INTEGER, 
	sha256 VARCHAR, 
	path VARCHAR, 
	preview JSON, 
	error TEXT, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	CONSTRAINT pk_datasets PRIMARY KEY (id), 
	CONSTRAINT fk_datasets_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_datasets_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT uq_datasets_workspace_id_name UNIQUE (workspace_id, name)
);
CREATE TABLE device_codes (
	id VARCHAR NOT NULL, 
	device_hash VARCHAR NOT NULL, 
	user_code VARCHAR NOT NULL, 
	device_name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	user_id VARCHAR, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	last_polled_at DATETIME, 
	CONSTRAINT pk_device_codes PRIMARY KEY (id), 
	CONSTRAINT fk_device_codes_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_device_codes_device_hash UNIQUE (device_hash), 
	CONSTRAINT uq_device_codes_user_code UNIQUE (user_code)
);
CREATE TABLE import_files (
	import_id VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	path VARCHAR NOT NULL, 
	size BIGINT NOT NULL, 
	sha256 VARCHAR NOT NULL, 
	uploaded BOOLEAN NOT NULL, 
	CONSTRAINT pk_import_files PRIMARY KEY (import_id, number), 
	CONSTRAINT fk_import_files_import_id_imports FOREIGN KEY(import_id) REFERENCES imports (id) ON DELETE CASCADE, 
	CONSTRAINT uq_import_files_import_id_path UNIQUE (import_id, path)
);
CREATE TABLE imports (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	creator_id VARCHAR, 
	run_id VARCHAR, 
	digest VARCHAR NOT NULL, 
	local_run_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	reimport BOOLEAN NOT NULL, 
	run JSON NOT NULL, 
	provenance JSON NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	CONSTRAINT pk_imports PRIMARY KEY (id), 
	CONSTRAINT fk_imports_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_imports_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE SET NULL, 
	CONSTRAINT fk_imports_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE
);
CREATE TABLE members (
	workspace_id VARCHAR NOT NULL, 
	user_id VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_members PRIMARY KEY (workspace_id, user_id), 
	CONSTRAINT fk_members_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_members_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE
);
CREATE TABLE metric_points (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	"key" VARCHAR NOT NULL, 
	step INTEGER NOT NULL, 
	value DOUBLE NOT NULL, 
	timestamp DATETIME NOT NULL, 
	CONSTRAINT pk_metric_points PRIMARY KEY (id), 
	CONSTRAINT fk_metric_points_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_metric_points_run_id_key_step UNIQUE (run_id, "key", step)
);
CREATE TABLE repositories (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	full_name VARCHAR NOT NULL, 
	url VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	default_branch VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	last_synced_commit VARCHAR, 
	last_synced_at DATETIME, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_repositories PRIMARY KEY (id), 
	CONSTRAINT fk_repositories_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT uq_repositories_workspace_id UNIQUE (workspace_id)
);
CREATE TABLE rollout_servers (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR, 
	owner_id VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	port INTEGER NOT NULL, 
	agent_loop_name VARCHAR NOT NULL, 
	key_id VARCHAR, 
	nonce BLOB, 
	ciphertext BLOB, 
	status VARCHAR NOT NULL, 
	error TEXT, 
	last_seen DATETIME NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_rollout_servers PRIMARY KEY (id), 
	CONSTRAINT fk_rollout_servers_owner_id_users FOREIGN KEY(owner_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_rollout_servers_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE SET NULL, 
	CONSTRAINT uq_rollout_servers_owner_id_host_port UNIQUE (owner_id, host, port)
);
CREATE TABLE "rollouts" (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	rollout_id VARCHAR NOT NULL, 
	row_index INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	status VARCHAR NOT NULL, 
	reward DOUBLE, 
	tokens INTEGER NOT NULL, 
	duration_ms DOUBLE NOT NULL, 
	failure_category VARCHAR, 
	body TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_rollouts PRIMARY KEY (id), 
	CONSTRAINT uq_rollouts_run_id_row_index_attempt UNIQUE (run_id, row_index, attempt), 
	CONSTRAINT fk_rollouts_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE run_events (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	timestamp DATETIME NOT NULL, 
	"before" VARCHAR, 
	status VARCHAR NOT NULL, 
	reason TEXT NOT NULL, 
	CONSTRAINT pk_run_events PRIMARY KEY (id), 
	CONSTRAINT fk_run_events_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE run_logs (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	timestamp DATETIME NOT NULL, 
	level VARCHAR NOT NULL, 
	step VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	details JSON, 
	CONSTRAINT pk_run_logs PRIMARY KEY (id), 
	CONSTRAINT fk_run_logs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE
);
CREATE TABLE runs (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	repository_id VARCHAR, 
	dataset_id VARCHAR, 
	creator_id VARCHAR, 
	kind VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	config JSON NOT NULL, 
	rollout VARCHAR NOT NULL, 
	model_path VARCHAR NOT NULL, 
	dataset VARCHAR NOT NULL, 
	dataset_path VARCHAR NOT NULL, 
	dataset_sha256 VARCHAR, 
	dataset_rows INTEGER, 
	branch VARCHAR, 
	commit_sha VARCHAR NOT NULL, 
	rows JSON NOT NULL, 
	sampled_rows INTEGER NOT NULL, 
	sample_seed BIGINT, 
	secret_scopes JSON NOT NULL, 
	progress JSON, 
	report JSON, 
	failure JSON, 
	retries INTEGER NOT NULL, 
	lease_hash VARCHAR, 
	lease_until DATETIME, 
	worker VARCHAR, 
	starts INTEGER NOT NULL, 
	handle JSON, 
	stop_requested_at DATETIME, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	started_at DATETIME, 
	completed_at DATETIME, imported JSON, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_runs_dataset_id_datasets FOREIGN KEY(dataset_id) REFERENCES datasets (id) ON DELETE SET NULL, 
	CONSTRAINT fk_runs_repository_id_repositories FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE SET NULL, 
	CONSTRAINT fk_runs_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT uq_runs_workspace_id_kind_name UNIQUE (workspace_id, kind, name)
);
CREATE TABLE secrets (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	scope VARCHAR NOT NULL, 
	owner_id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	version INTEGER NOT NULL, 
	key_id VARCHAR NOT NULL, 
	nonce BLOB NOT NULL, 
	ciphertext BLOB NOT NULL, 
	creator_id VARCHAR, 
	updater_id VARCHAR, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, last_used_at DATETIME, last_used_by VARCHAR, 
	CONSTRAINT pk_secrets PRIMARY KEY (id), 
	CONSTRAINT fk_secrets_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_secrets_updater_id_users FOREIGN KEY(updater_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_secrets_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT uq_secrets_workspace_id_scope_owner_id_name UNIQUE (workspace_id, scope, owner_id, name)
);
CREATE TABLE sync_events (
	id VARCHAR NOT NULL, 
	repository_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	branch VARCHAR NOT NULL, 
	commit_sha VARCHAR NOT NULL, 
	author VARCHAR NOT NULL, 
	message TEXT NOT NULL, 
	rollouts_found INTEGER NOT NULL, 
	error TEXT, 
	created_at DATETIME NOT NULL, 
	finished_at DATETIME, 
	CONSTRAINT pk_sync_events PRIMARY KEY (id), 
	CONSTRAINT fk_sync_events_repository_id_repositories FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE
);
CREATE TABLE synced_rollouts (
	id VARCHAR NOT NULL, 
	repository_id VARCHAR NOT NULL, 
	branch VARCHAR NOT NULL, 
	commit_sha VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	description TEXT, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_synced_rollouts PRIMARY KEY (id), 
	CONSTRAINT fk_synced_rollouts_repository_id_repositories FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE CASCADE, 
	CONSTRAINT uq_synced_rollouts_repository_id_commit_sha_name UNIQUE (repository_id, commit_sha, name)
);
CREATE TABLE tokens (
	id VARCHAR NOT NULL, 
	user_id VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	last_used_at DATETIME, 
	revoked_at DATETIME, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_tokens_hash UNIQUE (hash)
);
CREATE TABLE uploads (
	id VARCHAR NOT NULL, 
	dataset_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	format VARCHAR NOT NULL, 
	size BIGINT NOT NULL, 
	part_size BIGINT NOT NULL, 
	parts INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	CONSTRAINT pk_uploads PRIMARY KEY (id), 
	CONSTRAINT fk_uploads_dataset_id_datasets FOREIGN KEY(dataset_id) REFERENCES datasets (id) ON DELETE CASCADE
);
CREATE TABLE users (
	id VARCHAR NOT NULL, 
	handle VARCHAR NOT NULL, 
	email VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_email UNIQUE (email), 
	CONSTRAINT uq_users_handle UNIQUE (handle)
);
CREATE TABLE workspaces (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_workspaces PRIMARY KEY (id), 
	CONSTRAINT uq_workspaces_name UNIQUE (name)
);
CREATE INDEX ix_datasets_workspace_id ON datasets (workspace_id);
CREATE INDEX ix_members_user_id ON members (user_id);
CREATE INDEX ix_repositories_full_name ON repositories (full_name);
CREATE INDEX ix_secrets_workspace_id ON secrets (workspace_id);
CREATE INDEX ix_tokens_user_id ON tokens (user_id);
CREATE INDEX ix_dataset_logs_dataset_id ON dataset_logs (dataset_id);
CREATE INDEX ix_runs_created_at ON runs (created_at);
CREATE INDEX ix_runs_dataset_id ON runs (dataset_id);
CREATE INDEX ix_runs_queue ON runs (status, lease_until, created_at);
CREATE INDEX ix_runs_workspace_id ON runs (workspace_id);
CREATE INDEX ix_sync_events_created_at ON sync_events (created_at);
CREATE INDEX ix_sync_events_repository_id ON sync_events (repository_id);
CREATE INDEX ix_synced_rollouts_commit_sha ON synced_rollouts (commit_sha);
CREATE INDEX ix_synced_rollouts_repository_id ON synced_rollouts (repository_id);
CREATE INDEX ix_uploads_dataset_id ON uploads (dataset_id);
CREATE INDEX ix_checkpoints_run_id ON checkpoints (run_id);
CREATE INDEX ix_metric_points_run_id ON metric_points (run_id);
CREATE INDEX ix_run_events_run_id ON run_events (run_id);
CREATE INDEX ix_run_logs_run_id_id ON run_logs (run_id, id);
CREATE INDEX ix_rollout_servers_last_seen ON rollout_servers (last_seen);
CREATE INDEX ix_rollout_servers_workspace_id ON rollout_servers (workspace_id);
CREATE INDEX ix_imports_run_id ON imports (run_id);
CREATE INDEX ix_imports_digest ON imports (workspace_id, digest);
CREATE INDEX ix_imports_local_run ON imports (workspace_id, local_run_id);
CREATE INDEX ix_rollouts_run_id ON rollouts (run_id);
COMMIT;
