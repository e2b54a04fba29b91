CREATE TABLE experiments (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	state VARCHAR(16) NOT NULL,
	error TEXT,
	config TEXT NOT NULL,
	config_text TEXT,
	model_dir TEXT NOT NULL,
	process TEXT,
	created_at FLOAT NOT NULL,
	ended_at FLOAT, control VARCHAR(16), progress FLOAT, archived BOOLEAN DEFAULT 0 NOT NULL, notes TEXT,
	CONSTRAINT pk_experiments PRIMARY KEY (id)
);
CREATE TABLE trials (
	id INTEGER NOT NULL,
	experiment_id INTEGER NOT NULL,
	state VARCHAR(16) NOT NULL,
	error TEXT,
	hparams TEXT NOT NULL,
	seed BIGINT NOT NULL,
	trial_dir TEXT,
	created_at FLOAT NOT NULL,
	ended_at FLOAT, search_index INTEGER, length BIGINT, rung INTEGER, num_restarts INTEGER DEFAULT '0' NOT NULL, control VARCHAR(16), labels TEXT, notes TEXT,
	CONSTRAINT pk_trials PRIMARY KEY (id),
	CONSTRAINT fk_trials_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
CREATE INDEX ix_trials_experiment_id ON trials (experiment_id);
CREATE TABLE runs (
	trial_id INTEGER NOT NULL,
	run_id INTEGER NOT NULL,
	process TEXT NOT NULL,
	started_at FLOAT NOT NULL,
	CONSTRAINT pk_runs PRIMARY KEY (trial_id, run_id),
	CONSTRAINT fk_runs_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);
CREATE TABLE metrics (
	id INTEGER NOT NULL,
	trial_id INTEGER NOT NULL,
	run_id INTEGER NOT NULL,
	seq BIGINT,
	kind VARCHAR(16) NOT NULL,
	steps_completed BIGINT NOT NULL,
	metrics TEXT NOT NULL,
	batch_metrics TEXT,
	reported_at FLOAT NOT NULL, n_records BIGINT,
	CONSTRAINT pk_metrics PRIMARY KEY (id),
	CONSTRAINT fk_metrics_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
	CONSTRAINT uq_metrics_trial_id_run_id_seq UNIQUE (trial_id, run_id, seq)
);
CREATE INDEX ix_metrics_trial_id_kind_steps_completed_run_id ON metrics (trial_id, kind, steps_completed, run_id);
CREATE TABLE validation_values (
	metric_id INTEGER NOT NULL,
	name TEXT NOT NULL,
	experiment_id INTEGER NOT NULL,
	trial_id INTEGER NOT NULL,
	value FLOAT NOT NULL,
	CONSTRAINT pk_validation_values PRIMARY KEY (metric_id, name),
	CONSTRAINT fk_validation_values_metric_id FOREIGN KEY(metric_id) REFERENCES metrics (id)
);
CREATE INDEX ix_validation_values_trial_id_name_value ON validation_values (trial_id, name, value);
CREATE TABLE events (
	id INTEGER NOT NULL,
	trial_id INTEGER NOT NULL,
	run_id INTEGER NOT NULL,
	seq BIGINT,
	kind TEXT NOT NULL,
	payload TEXT NOT NULL,
	reported_at FLOAT NOT NULL,
	CONSTRAINT pk_events PRIMARY KEY (id),
	CONSTRAINT fk_events_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);
CREATE INDEX ix_events_trial_id_kind ON events (trial_id, kind);
CREATE TABLE spools (
	trial_id INTEGER NOT NULL,
	run_id INTEGER NOT NULL,
	byte_offset BIGINT NOT NULL,
	last_seq BIGINT NOT NULL,
	CONSTRAINT pk_spools PRIMARY KEY (trial_id, run_id),
	CONSTRAINT fk_spools_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id)
);
CREATE TABLE checkpoints (
	uuid VARCHAR(64) NOT NULL,
	trial_id INTEGER NOT NULL,
	experiment_id INTEGER NOT NULL,
	storage_url TEXT NOT NULL,
	state VARCHAR(20) NOT NULL,
	steps_completed BIGINT NOT NULL,
	metadata TEXT NOT NULL,
	resources TEXT NOT NULL,
	started_at FLOAT NOT NULL,
	committed_at FLOAT,
	deleted_at FLOAT,
	CONSTRAINT pk_checkpoints PRIMARY KEY (uuid),
	CONSTRAINT fk_checkpoints_trial_id FOREIGN KEY(trial_id) REFERENCES trials (id),
	CONSTRAINT fk_checkpoints_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
CREATE TABLE models (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	description TEXT NOT NULL,
	metadata TEXT NOT NULL,
	labels TEXT NOT NULL,
	archived BOOLEAN NOT NULL,
	last_number INTEGER NOT NULL,
	created_at FLOAT NOT NULL,
	updated_at FLOAT NOT NULL,
	CONSTRAINT pk_models PRIMARY KEY (id),
	CONSTRAINT uq_models_name UNIQUE (name)
);
CREATE TABLE model_versions (
	model_id INTEGER NOT NULL,
	number INTEGER NOT NULL,
	checkpoint_uuid VARCHAR(64) NOT NULL,
	name TEXT NOT NULL,
	comment TEXT NOT NULL,
	notes TEXT NOT NULL,
	metadata TEXT NOT NULL,
	created_at FLOAT NOT NULL,
	updated_at FLOAT NOT NULL,
	CONSTRAINT pk_model_versions PRIMARY KEY (model_id, number),
	CONSTRAINT fk_model_versions_model_id FOREIGN KEY(model_id) REFERENCES models (id),
	CONSTRAINT fk_model_versions_checkpoint_uuid FOREIGN KEY(checkpoint_uuid) REFERENCES checkpoints (uuid)
);
CREATE INDEX ix_model_versions_checkpoint_uuid ON model_versions (checkpoint_uuid);
CREATE UNIQUE INDEX ix_trials_experiment_id_search_index ON trials (experiment_id, search_index);
CREATE TABLE search_events (
	experiment_id INTEGER NOT NULL,
	number INTEGER NOT NULL,
	event TEXT,
	created_at FLOAT NOT NULL,
	CONSTRAINT pk_search_events PRIMARY KEY (experiment_id, number),
	CONSTRAINT fk_search_events_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
CREATE TABLE last_ids (
	name VARCHAR(32) NOT NULL,
	last_id BIGINT NOT NULL,
	CONSTRAINT pk_last_ids PRIMARY KEY (name)
);
CREATE TABLE experiment_labels (
	label TEXT NOT NULL,
	experiment_id INTEGER NOT NULL,
	CONSTRAINT pk_experiment_labels PRIMARY KEY (label, experiment_id),
	CONSTRAINT fk_experiment_labels_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id)
);
CREATE INDEX ix_validation_values_experiment_id_name_value_trial_id ON validation_values (experiment_id, name, value, trial_id);
CREATE INDEX ix_validation_values_largest ON validation_values (experiment_id, name, value DESC, trial_id);
CREATE INDEX ix_checkpoints_trial_id_steps_completed ON checkpoints (trial_id, steps_completed);
CREATE INDEX ix_checkpoints_experiment_id_trial_id_steps_completed ON checkpoints (experiment_id, trial_id, steps_completed);
CREATE TABLE users (
	id INTEGER NOT NULL,
	name TEXT NOT NULL,
	password_hash TEXT,
	is_admin BOOLEAN NOT NULL,
	is_active BOOLEAN NOT NULL,
	created_at FLOAT NOT NULL,
	CONSTRAINT pk_users PRIMARY KEY (id),
	CONSTRAINT uq_users_name UNIQUE (name)
);
CREATE TABLE tokens (
	digest VARCHAR(64) NOT NULL,
	user_id INTEGER NOT NULL,
	trial_id INTEGER,
	created_at FLOAT NOT NULL,
	expires_at FLOAT NOT NULL,
	CONSTRAINT pk_tokens PRIMARY KEY (digest),
	CONSTRAINT fk_tokens_user_id FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE INDEX ix_tokens_user_id ON tokens (user_id);
CREATE INDEX ix_tokens_expires_at ON tokens (expires_at);
CREATE TABLE submissions (
	experiment_id INTEGER NOT NULL,
	user_id INTEGER NOT NULL,
	submission_id VARCHAR(64) NOT NULL,
	phase VARCHAR(16) NOT NULL,
	test_mode BOOLEAN NOT NULL,
	created_at FLOAT NOT NULL,
	CONSTRAINT pk_submissions PRIMARY KEY (experiment_id),
	CONSTRAINT fk_submissions_experiment_id FOREIGN KEY(experiment_id) REFERENCES experiments (id),
	CONSTRAINT fk_submissions_user_id FOREIGN KEY(user_id) REFERENCES users (id),
	CONSTRAINT uq_submissions_user_id_submission_id UNIQUE (user_id, submission_id)
);
CREATE INDEX ix_submissions_phase ON submissions (phase);
CREATE INDEX ix_trials_experiment_id_control ON trials (experiment_id, control);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO alembic_version VALUES ('0009');
