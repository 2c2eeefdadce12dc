BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0026');
CREATE TABLE annotations (
	id INTEGER NOT NULL, 
	run_id VARCHAR NOT NULL, 
	author_id VARCHAR, 
	step INTEGER NOT NULL, 
	row_index INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_annotations PRIMARY KEY (id), 
	CONSTRAINT fk_annotations_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT fk_annotations_author_id_users FOREIGN KEY(author_id) REFERENCES users (id) ON DELETE SET NULL
);
CREATE TABLE audit_log (
	id INTEGER NOT NULL, 
	timestamp DATETIME NOT NULL, 
	workspace_id VARCHAR, 
	actor_id VARCHAR, 
	actor VARCHAR NOT NULL, 
	token VARCHAR NOT NULL, 
	address VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	target TEXT NOT NULL, 
	details JSON, 
	CONSTRAINT pk_audit_log PRIMARY KEY (id), 
	CONSTRAINT fk_audit_log_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE SET NULL, 
	CONSTRAINT fk_audit_log_actor_id_users FOREIGN KEY(actor_id) REFERENCES users (id) ON DELETE SET NULL
);
CREATE TABLE base_models (
	id VARCHAR NOT NULL, 
	workspace_id VARCHAR NOT NULL, 
	creator_id VARCHAR, 
	name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	files JSON NOT NULL, 
	size BIGINT NOT NULL, 
	architecture VARCHAR, 
	parameters BIGINT, 
	context_length INTEGER, 
	chat_template BOOLEAN, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	CONSTRAINT pk_base_models PRIMARY KEY (id), 
	CONSTRAINT uq_base_models_workspace_id_name UNIQUE (workspace_id, name), 
	CONSTRAINT fk_base_models_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT fk_base_models_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL
);
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
INSERT INTO "datasets" VALUES('c2b22c18b1294254b7074f3cf6f210a0','27a429dae03b44c2a05ecb896f601d8b','5016a573cef840208c135dc2e352166b','sums','jsonl','uploaded',4,1,NULL,'objects/datasets/x.jsonl','[{"a": 1}]',NULL,'2026-11-24 13:00:16.275530','2026-11-24 13:00:16.275535');
CREATE TABLE "device_codes" (
	id VARCHAR NOT NULL, 
	device_hash VARCHAR NOT NULL, 
	user_code VARCHAR NOT NULL, 
	device_name VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	user_id VARCHAR, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME NOT NULL, 
	last_polled_at DATETIME, 
	maker_id VARCHAR, 
	CONSTRAINT pk_device_codes PRIMARY KEY (id), 
	CONSTRAINT uq_device_codes_user_code UNIQUE (user_code), 
	CONSTRAINT fk_device_codes_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_device_codes_device_hash UNIQUE (device_hash), 
	CONSTRAINT fk_device_codes_maker_id_tokens FOREIGN KEY(maker_id) REFERENCES tokens (id) ON DELETE CASCADE
);
CREATE TABLE identities (
	issuer VARCHAR NOT NULL, 
	subject VARCHAR NOT NULL, 
	user_id VARCHAR NOT NULL, 
	email VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	last_used_at DATETIME NOT NULL, 
	CONSTRAINT pk_identities PRIMARY KEY (issuer, subject), 
	CONSTRAINT fk_identities_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE
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
CREATE TABLE invitations (
	workspace_id VARCHAR NOT NULL, 
	email VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	inviter_id VARCHAR, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_invitations PRIMARY KEY (workspace_id, email), 
	CONSTRAINT fk_invitations_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT fk_invitations_inviter_id_users FOREIGN KEY(inviter_id) REFERENCES users (id) ON DELETE SET NULL
);
CREATE TABLE "jobs" (
	id VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	shard INTEGER NOT NULL, 
	state VARCHAR NOT NULL, 
	lease_hash VARCHAR, 
	lease_until DATETIME, 
	worker VARCHAR, 
	starts INTEGER NOT NULL, 
	handle JSON, 
	worker_id VARCHAR, 
	secrets_taker VARCHAR, 
	shards INTEGER DEFAULT '1' NOT NULL, 
	progress JSON, 
	report JSON, 
	status VARCHAR, 
	rollouts INTEGER NOT NULL, 
	lease_id VARCHAR, 
	ticket_hash VARCHAR, 
	ticket_until DATETIME, 
	ticket_taker VARCHAR, 
	place VARCHAR, 
	endpoint VARCHAR NOT NULL, 
	paused_until DATETIME, 
	cpus DOUBLE NOT NULL, 
	memory_mb INTEGER NOT NULL, 
	gpus INTEGER NOT NULL, 
	lost INTEGER NOT NULL, not_before DATETIME, 
	CONSTRAINT pk_jobs PRIMARY KEY (id), 
	CONSTRAINT uq_jobs_ticket_hash UNIQUE (ticket_hash), 
	CONSTRAINT fk_jobs_worker_id_workers FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE SET NULL, 
	CONSTRAINT uq_jobs_lease_hash UNIQUE (lease_hash), 
	CONSTRAINT fk_jobs_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_jobs_run_id_shard UNIQUE (run_id, shard)
);
INSERT INTO "jobs" VALUES('5c1d8e5784a8456ca5a281fb17f38822','a8eab5f8f1fd4c0db64d1afb5bacb96c',0,'held','0000000000000000000000000000000000000000000000000000000000000000',NULL,'w1',1,NULL,'559179cb421946648ac13a5d3ee4dbb2',NULL,1,NULL,NULL,NULL,1,'1111111111111111',NULL,NULL,NULL,NULL,'openai/gpt-4o-mini',NULL,0.0,0,0,0,NULL);
CREATE TABLE members (
	workspace_id VARCHAR NOT NULL, 
	user_id VARCHAR NOT NULL, 
	role VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	CONSTRAINT pk_members PRIMARY KEY (workspace_id, user_id), 
	CONSTRAINT fk_members_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT fk_members_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE
);
INSERT INTO "members" VALUES('27a429dae03b44c2a05ecb896f601d8b','5016a573cef840208c135dc2e352166b','owner','2026-11-24 13:00:16.213683');
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
CREATE TABLE "repositories" (
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
	trusted BOOLEAN NOT NULL, 
	secret_name VARCHAR, 
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
	step INTEGER NOT NULL, 
	row_key VARCHAR NOT NULL, 
	CONSTRAINT pk_rollouts PRIMARY KEY (id), 
	CONSTRAINT fk_rollouts_run_id_runs FOREIGN KEY(run_id) REFERENCES runs (id) ON DELETE CASCADE, 
	CONSTRAINT uq_rollouts_run_id_step_row_key_attempt UNIQUE (run_id, step, row_key, attempt)
);
INSERT INTO "rollouts" VALUES(1,'a8eab5f8f1fd4c0db64d1afb5bacb96c','r-0-0',0,0,'success',1.0,150,640.0,NULL,'{"rollout_id":"r-0-0","row_index":0,"attempt":0,"step":0,"row_key":"@0","status":"success","messages":[{"role":"system","content":"Use the tools. End with #### and the number."},{"role":"user","content":"What is 2 times 3?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"multiply","arguments":"{\"a\": 2, \"b\": 3}"}}]},{"role":"tool","tool_call_id":"call_1","content":"{\"result\": 6}"},{"role":"assistant","content":"The product is 6.\n#### 6"}],"scores":{"reward":{"name":"reward","value":1.0,"reason":"compared with the product","duration_ms":0.0}},"finish_reason":"stop","groups":{},"usage":{"prompt_tokens":120,"completion_tokens":30,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"cost_usd":0.0004},"calls":[{"started_ms":2.0,"duration_ms":310.0,"usage":{"prompt_tokens":120,"completion_tokens":30,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"cost_usd":0.0004},"finish_reason":"tool_calls","retries":0,"cached":false}],"num_tool_calls":1,"duration_ms":640.0,"started_at":"2026-11-24T13:00:16.318738Z","metrics":{},"info":{},"hashes":{}}','2026-11-24 13:00:16.341173',0,'@0');
INSERT INTO "rollouts" VALUES(2,'a8eab5f8f1fd4c0db64d1afb5bacb96c','r-1-0',1,0,'success',1.0,151,650.0,NULL,'{"rollout_id":"r-1-0","row_index":1,"attempt":0,"step":0,"row_key":"@1","status":"success","messages":[{"role":"system","content":"Use the tools. End with #### and the number."},{"role":"user","content":"What is 3 times 3?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"multiply","arguments":"{\"a\": 3, \"b\": 3}"}}]},{"role":"tool","tool_call_id":"call_1","content":"{\"result\": 9}"},{"role":"assistant","content":"The product is 9.\n#### 9"}],"scores":{"reward":{"name":"reward","value":1.0,"reason":"compared with the product","duration_ms":0.0}},"finish_reason":"stop","groups":{},"usage":{"prompt_tokens":121,"completion_tokens":30,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"cost_usd":0.0004},"calls":[{"started_ms":2.0,"duration_ms":310.0,"usage":{"prompt_tokens":121,"completion_tokens":30,"cached_tokens":0,"cache_write_tokens":0,"reasoning_tokens":0,"cost_usd":0.0004},"finish_reason":"tool_calls","retries":0,"cached":false}],"num_tool_calls":1,"duration_ms":650.0,"started_at":"2026-11-24T13:00:16.318770Z","metrics":{},"info":{},"hashes":{}}','2026-11-24 13:00:16.341173',0,'@1');
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
INSERT INTO "run_events" VALUES(1,'a8eab5f8f1fd4c0db64d1afb5bacb96c','2026-11-24 13:00:16.315300',NULL,'pending','submitted by local');
INSERT INTO "run_events" VALUES(2,'a8eab5f8f1fd4c0db64d1afb5bacb96c','2026-11-24 13:00:16.315304','pending','running','');
INSERT INTO "run_events" VALUES(3,'a8eab5f8f1fd4c0db64d1afb5bacb96c','2026-11-24 13:00:16.380861','pending','running','claimed by w1');
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
INSERT INTO "run_logs" VALUES(1,'a8eab5f8f1fd4c0db64d1afb5bacb96c','2026-11-24 13:00:16.381317','info','','job started',NULL);
CREATE TABLE "runs" (
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
	imported JSON, 
	stop_requested_at DATETIME, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, 
	started_at DATETIME, 
	completed_at DATETIME, 
	snapshot JSON, 
	tags JSON NOT NULL, 
	note TEXT NOT NULL, 
	pinned BOOLEAN NOT NULL, 
	priority INTEGER NOT NULL, quarantine JSON, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT fk_runs_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT fk_runs_dataset_id_datasets FOREIGN KEY(dataset_id) REFERENCES datasets (id) ON DELETE SET NULL, 
	CONSTRAINT fk_runs_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT uq_runs_workspace_id_kind_name UNIQUE (workspace_id, kind, name), 
	CONSTRAINT fk_runs_repository_id_repositories FOREIGN KEY(repository_id) REFERENCES repositories (id) ON DELETE SET NULL
);
INSERT INTO "runs" VALUES('a8eab5f8f1fd4c0db64d1afb5bacb96c','27a429dae03b44c2a05ecb896f601d8b',NULL,NULL,NULL,'eval','multiply-1','running','{"experiment": {"rollout": "multiply", "entrypoint": "main.py", "model_path": "openai/gpt-5-mini", "dataset": "multiply"}, "evaluation": {"n": 3, "limit": 10, "pass_threshold": 1.0}, "secrets": {"required": ["OPENAI_API_KEY"]}}','multiply','openai/gpt-5-mini','multiply','multiply.jsonl',NULL,200,'main','4f1c2d3e4f1c2d3e4f1c2d3e4f1c2d3e4f1c2d3e','[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]',2,NULL,'{"OPENAI_API_KEY": "user_override"}',NULL,NULL,NULL,0,NULL,NULL,'2026-11-24 13:00:16.277872','2026-11-24 13:00:16.277874','2026-11-24 13:00:16.276539',NULL,NULL,'[]','',0,0,NULL);
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
	updated_at DATETIME NOT NULL, 
	last_used_at DATETIME, 
	last_used_by VARCHAR, 
	CONSTRAINT pk_secrets PRIMARY KEY (id), 
	CONSTRAINT fk_secrets_creator_id_users FOREIGN KEY(creator_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_secrets_updater_id_users FOREIGN KEY(updater_id) REFERENCES users (id) ON DELETE SET NULL, 
	CONSTRAINT fk_secrets_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE, 
	CONSTRAINT uq_secrets_workspace_id_scope_owner_id_name UNIQUE (workspace_id, scope, owner_id, name)
);
INSERT INTO "secrets" VALUES('f4830f54b22249ac8dc6d94daa6a902d','27a429dae03b44c2a05ecb896f601d8b','workspace','27a429dae03b44c2a05ecb896f601d8b','API_KEY',1,'5e64bc228f795029',X'2851875FA2B6C8F4D5680BA4',X'07C175A9EBCD1B94F1F15B69ACB3AEE1B5DDA51108','5016a573cef840208c135dc2e352166b','5016a573cef840208c135dc2e352166b','2026-11-24 13:00:16.245207','2026-11-24 13:00:16.245207',NULL,NULL);
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
CREATE TABLE "tokens" (
	id VARCHAR NOT NULL, 
	user_id VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	expires_at DATETIME, 
	last_used_at DATETIME, 
	revoked_at DATETIME, 
	scopes VARCHAR NOT NULL, 
	workspace_id VARCHAR, 
	parent_id VARCHAR, 
	CONSTRAINT pk_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_tokens_parent_id_tokens FOREIGN KEY(parent_id) REFERENCES tokens (id) ON DELETE SET NULL, 
	CONSTRAINT fk_tokens_user_id_users FOREIGN KEY(user_id) REFERENCES users (id) ON DELETE CASCADE, 
	CONSTRAINT uq_tokens_hash UNIQUE (hash), 
	CONSTRAINT fk_tokens_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE
);
INSERT INTO "tokens" VALUES('fb4ff26f99bc40cfbaaba83c9824f82d','5016a573cef840208c135dc2e352166b','f0c889e63d79ad0ab4fc185331123c35b20cd270dc43c3fe80f56d341ee7d8ea','laptop','device','2026-11-24 13:00:16.214775','2027-02-22 13:00:16.213950',NULL,NULL,'api git inference',NULL,NULL);
CREATE TABLE uploads (
	id VARCHAR NOT NULL, 
	dataset_id VARCHAR NOT NULL, 
	status VARCHAR NOT NULL, 
	format VARCHAR NOT NULL, 
	size BIGINT NOT NULL, 
	part_size BIGINT NOT NULL, 
	parts INTEGER NOT NULL, 
	created_at DATETIME NOT NULL, 
	updated_at DATETIME NOT NULL, attempts INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_uploads PRIMARY KEY (id), 
	CONSTRAINT fk_uploads_dataset_id_datasets FOREIGN KEY(dataset_id) REFERENCES datasets (id) ON DELETE CASCADE
);
CREATE TABLE "users" (
	id VARCHAR NOT NULL, 
	handle VARCHAR NOT NULL, 
	email VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, 
	operator BOOLEAN NOT NULL, 
	CONSTRAINT pk_users PRIMARY KEY (id), 
	CONSTRAINT uq_users_email UNIQUE (email), 
	CONSTRAINT uq_users_handle UNIQUE (handle)
);
INSERT INTO "users" VALUES('5016a573cef840208c135dc2e352166b','ada','ada@localhost','ada','2026-11-24 13:00:16.167613',1);
CREATE TABLE workers (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	token_id VARCHAR, 
	workspace_id VARCHAR, 
	embedded BOOLEAN NOT NULL, 
	machine VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	protocol INTEGER NOT NULL, 
	executor VARCHAR NOT NULL, 
	kinds JSON NOT NULL, 
	labels JSON NOT NULL, 
	resources JSON NOT NULL, 
	max_jobs INTEGER NOT NULL, 
	slots INTEGER NOT NULL, 
	sandbox VARCHAR NOT NULL, 
	draining BOOLEAN NOT NULL, 
	removed_at DATETIME, 
	created_at DATETIME NOT NULL, 
	last_seen DATETIME NOT NULL, 
	CONSTRAINT pk_workers PRIMARY KEY (id), 
	CONSTRAINT fk_workers_token_id_tokens FOREIGN KEY(token_id) REFERENCES tokens (id) ON DELETE SET NULL, 
	CONSTRAINT fk_workers_workspace_id_workspaces FOREIGN KEY(workspace_id) REFERENCES workspaces (id) ON DELETE CASCADE
);
INSERT INTO "workers" VALUES('559179cb421946648ac13a5d3ee4dbb2','w1',NULL,NULL,1,'here','1.0.0',1,'local','["eval", "training", "serving"]','{}','{}',1,1,'',0,NULL,'2026-11-24 13:00:16.370696','2026-11-24 13:00:16.370701');
CREATE TABLE workspaces (
	id VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	created_at DATETIME NOT NULL, max_runs INTEGER, max_rollouts INTEGER, max_datasets INTEGER, max_bytes BIGINT, served_at DATETIME, max_cpus DOUBLE, max_memory_mb INTEGER, max_gpus INTEGER, 
	CONSTRAINT pk_workspaces PRIMARY KEY (id), 
	CONSTRAINT uq_workspaces_name UNIQUE (name)
);
INSERT INTO "workspaces" VALUES('27a429dae03b44c2a05ecb896f601d8b','here','2026-11-24 13:00:16.212456',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX ix_datasets_workspace_id ON datasets (workspace_id);
CREATE INDEX ix_members_user_id ON members (user_id);
CREATE INDEX ix_rollout_servers_last_seen ON rollout_servers (last_seen);
CREATE INDEX ix_rollout_servers_workspace_id ON rollout_servers (workspace_id);
CREATE INDEX ix_secrets_workspace_id ON secrets (workspace_id);
CREATE INDEX ix_dataset_logs_dataset_id ON dataset_logs (dataset_id);
CREATE INDEX ix_sync_events_created_at ON sync_events (created_at);
CREATE INDEX ix_sync_events_repository_id ON sync_events (repository_id);
CREATE INDEX ix_synced_rollouts_commit_sha ON synced_rollouts (commit_sha);
CREATE INDEX ix_synced_rollouts_repository_id ON synced_rollouts (repository_id);
CREATE INDEX ix_uploads_dataset_id ON uploads (dataset_id);
CREATE INDEX ix_checkpoints_run_id ON checkpoints (run_id);
CREATE INDEX ix_imports_digest ON imports (workspace_id, digest);
CREATE INDEX ix_imports_local_run ON imports (workspace_id, local_run_id);
CREATE INDEX ix_imports_run_id ON imports (run_id);
CREATE INDEX ix_metric_points_run_id ON metric_points (run_id);
CREATE INDEX ix_run_events_run_id ON run_events (run_id);
CREATE INDEX ix_run_logs_run_id_id ON run_logs (run_id, id);
CREATE INDEX ix_rollouts_run_id ON rollouts (run_id);
CREATE INDEX ix_rollouts_run_id_row_index_attempt ON rollouts (run_id, row_index, attempt);
CREATE INDEX ix_base_models_workspace_id ON base_models (workspace_id);
CREATE INDEX ix_tokens_parent_id ON tokens (parent_id);
CREATE INDEX ix_tokens_user_id ON tokens (user_id);
CREATE INDEX ix_tokens_workspace_id ON tokens (workspace_id);
CREATE INDEX ix_workers_name ON workers (name);
CREATE INDEX ix_workers_workspace_id ON workers (workspace_id);
CREATE INDEX ix_workers_last_seen ON workers (last_seen);
CREATE INDEX ix_invitations_email ON invitations (email);
CREATE INDEX ix_audit_log_timestamp ON audit_log (timestamp);
CREATE INDEX ix_audit_log_actor_id ON audit_log (actor_id);
CREATE INDEX ix_audit_log_workspace_id_id ON audit_log (workspace_id, id);
CREATE INDEX ix_repositories_full_name ON repositories (full_name);
CREATE INDEX ix_annotations_run_id ON annotations (run_id);
CREATE INDEX ix_identities_user_id ON identities (user_id);
CREATE INDEX ix_runs_queue ON runs (status, created_at);
CREATE INDEX ix_runs_listed ON runs (workspace_id, kind, created_at);
CREATE INDEX ix_runs_workspace_id ON runs (workspace_id);
CREATE INDEX ix_runs_created_at ON runs (created_at);
CREATE INDEX ix_runs_dataset_id ON runs (dataset_id);
CREATE INDEX ix_jobs_paused_until ON jobs (paused_until);
CREATE INDEX ix_jobs_queue ON jobs (state, lease_until);
CREATE INDEX ix_jobs_run_id ON jobs (run_id);
CREATE INDEX ix_jobs_worker_id ON jobs (worker_id);
COMMIT;
