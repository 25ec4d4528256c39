BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0017');
CREATE TABLE api_keys (
	id VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	shown VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	tenant VARCHAR NOT NULL, 
	scopes JSON NOT NULL, 
	requests_per_minute INTEGER, 
	tokens_per_minute INTEGER, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	revoked_at DOUBLE, 
	CONSTRAINT pk_api_keys PRIMARY KEY (id), 
	CONSTRAINT uq_api_keys_hash UNIQUE (hash)
);
INSERT INTO "api_keys" VALUES('key-dce76ac4','7ef16a4473c38f72703dd40a3269d5645eb401d59ad15158924c0bdee19df0f3','osd-tmci','ci','acme','["infer"]',NULL,NULL,1700000021.0,NULL,NULL);
CREATE TABLE audit (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	who VARCHAR NOT NULL, 
	origin VARCHAR NOT NULL, 
	action VARCHAR NOT NULL, 
	subject VARCHAR, 
	"before" JSON NOT NULL, 
	"after" JSON NOT NULL, 
	CONSTRAINT pk_audit PRIMARY KEY (id)
);
INSERT INTO "audit" VALUES(1,1700000010.0,'osd@host','osd','drafts alias','default:good','{}','{"version": "default-000001-36d71f1d"}');
INSERT INTO "audit" VALUES(2,1700000012.0,'osd@host','osd','drafts freeze','default','{"current": "default-000001-36d71f1d", "hold": null}','{"current": "default-000001-36d71f1d", "hold": "frozen"}');
INSERT INTO "audit" VALUES(3,1700000015.0,'osd@host','osd','router add','sql','{}','{"name": "sql", "draft": "default", "candidates": [], "matches": {"topic": ["sql"]}}');
INSERT INTO "audit" VALUES(4,1700000016.0,'osd@host','osd','router rename','sql','{"name": "sql", "draft": "default", "candidates": [], "matches": {"topic": ["sql"]}}','{"name": "tables", "draft": "default", "candidates": [], "matches": {"topic": ["sql"]}}');
INSERT INTO "audit" VALUES(5,1700000017.0,'osd@host','osd','router pin','tables','{}','{"tenant": "acme", "route": "tables"}');
INSERT INTO "audit" VALUES(6,1700000019.0,'osd@host','osd','router teach',NULL,'{}','{"topics": ["sql"], "new": 1, "moved": 0}');
INSERT INTO "audit" VALUES(7,1700000020.0,'osd@host','osd','replay tenant','acme','{"name": "acme", "learn": true, "share": true}','{"name": "acme", "learn": true, "share": false}');
INSERT INTO "audit" VALUES(8,1700000022.0,'osd@host','osd','keys create','key-dce76ac4','{}','{"id": "key-dce76ac4", "shown": "osd-tmci", "name": "ci", "tenant": "acme", "scopes": ["infer"], "requests_per_minute": null, "tokens_per_minute": null, "created_at": 1700000021.0, "expires_at": null, "revoked_at": null}');
INSERT INTO "audit" VALUES(9,1700000026.0,'osd@host','osd','engines add','vllm-1','{}','{"url": "http://127.0.0.1:8100", "draft": "default"}');
INSERT INTO "audit" VALUES(10,1700000027.0,'osd@host','osd','replay forget','r1','{}','{"what": "request", "requests": 1, "segments": 1, "bytes": 133, "rewritten": 5694, "versions": ["default-000001-36d71f1d"], "under_way": [], "topics": [], "tables": 0}');
CREATE TABLE canaries (
	version VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	base VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	worker VARCHAR, 
	claims INTEGER NOT NULL, 
	looks INTEGER NOT NULL, 
	began_at DOUBLE NOT NULL, 
	settled_at DOUBLE, 
	facts JSON NOT NULL, 
	CONSTRAINT pk_canaries PRIMARY KEY (version), 
	CONSTRAINT fk_canaries_version FOREIGN KEY(version) REFERENCES draft_versions (id), 
	CONSTRAINT fk_canaries_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_canaries_base FOREIGN KEY(base) REFERENCES draft_versions (id)
);
CREATE TABLE draft_versions (
	id VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	parent VARCHAR, 
	digest VARCHAR NOT NULL, 
	kind VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	path VARCHAR NOT NULL, 
	run_id VARCHAR, 
	evidence JSON NOT NULL, bytes INTEGER, served_at DOUBLE, deleted_at DOUBLE, has_master BOOLEAN DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_draft_versions PRIMARY KEY (id), 
	CONSTRAINT fk_draft_versions_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_draft_versions_parent FOREIGN KEY(parent) REFERENCES draft_versions (id), 
	CONSTRAINT uq_draft_versions_draft_number UNIQUE (draft, number)
);
INSERT INTO "draft_versions" VALUES('default-000000-9aa77ff6','default',0,NULL,'9aa77ff6a8a2645a8c07ce3bccd2e35c6973560f59fb446e1b4adcb64b304ea6','full','retired',1700000003.0,'default/default-000000-9aa77ff6',NULL,'{}',126,NULL,NULL,0);
INSERT INTO "draft_versions" VALUES('default-000001-36d71f1d','default',1,'default-000000-9aa77ff6','36d71f1d4b4dd3d785d18994eed0bea9db6be676bcb8391ef766410892a5dfde','full','serving',1700000006.0,'default/default-000001-36d71f1d','00000000000000000000000000000004','{"difference": 0.1}',126,1700000009.0,NULL,0);
CREATE TABLE drafts (
	name VARCHAR NOT NULL, 
	current_version VARCHAR, 
	created_at DOUBLE NOT NULL, options JSON DEFAULT '{}' NOT NULL, target VARCHAR, hold JSON DEFAULT '{}' NOT NULL, previous_version VARCHAR, 
	CONSTRAINT pk_drafts PRIMARY KEY (name)
);
INSERT INTO "drafts" VALUES('default','default-000001-36d71f1d',1.79589742289522409438e+09,'{}','9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab','{"kind": "frozen", "version": "default-000001-36d71f1d", "reason": "tried", "at": 1700000011.0}','default-000000-9aa77ff6');
CREATE TABLE engines (
	name VARCHAR NOT NULL, 
	url VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	added_at DOUBLE NOT NULL, 
	facts JSON NOT NULL, 
	holder VARCHAR, 
	lease_until DOUBLE NOT NULL, 
	CONSTRAINT pk_engines PRIMARY KEY (name), 
	CONSTRAINT uq_engines_url UNIQUE (url), 
	CONSTRAINT fk_engines_draft FOREIGN KEY(draft) REFERENCES drafts (name)
);
INSERT INTO "engines" VALUES('vllm-1','http://127.0.0.1:8100','default',1700000025.0,'{"version": "0.9"}',NULL,0.0);
CREATE TABLE outcome_batches (
	id VARCHAR NOT NULL, 
	at DOUBLE NOT NULL, 
	CONSTRAINT pk_outcome_batches PRIMARY KEY (id)
);
INSERT INTO "outcome_batches" VALUES('batch-1',1700000013.0);
CREATE TABLE outcome_counters (
	span INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	route VARCHAR NOT NULL, 
	draft_version VARCHAR NOT NULL, 
	controller VARCHAR NOT NULL, 
	tenant VARCHAR NOT NULL, 
	worker VARCHAR NOT NULL, 
	requests INTEGER NOT NULL, 
	rounds INTEGER NOT NULL, 
	drafted INTEGER NOT NULL, 
	accepted INTEGER NOT NULL, 
	rejections INTEGER NOT NULL, 
	emitted INTEGER NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	draft_ms DOUBLE NOT NULL, 
	verify_ms DOUBLE NOT NULL, 
	CONSTRAINT pk_outcome_counters PRIMARY KEY (span, start, route, draft_version, controller, tenant, worker)
);
INSERT INTO "outcome_counters" VALUES(60,999960,'default','default-000001-36d71f1d','fixed','default','server-1',1,10,40,30,8,40,12,1.5,2.5);
INSERT INTO "outcome_counters" VALUES(3600,997200,'default','default-000001-36d71f1d','fixed','default','server-1',1,10,40,30,8,40,12,1.5,2.5);
INSERT INTO "outcome_counters" VALUES(86400,950400,'default','default-000001-36d71f1d','fixed','default','server-1',1,10,40,30,8,40,12,1.5,2.5);
INSERT INTO "outcome_counters" VALUES(604800,604800,'default','default-000001-36d71f1d','fixed','default','server-1',1,10,40,30,8,40,12,1.5,2.5);
CREATE TABLE outcome_log (
	id INTEGER NOT NULL, 
	request_id VARCHAR NOT NULL, 
	route VARCHAR NOT NULL, 
	draft_version VARCHAR NOT NULL, 
	controller VARCHAR NOT NULL, 
	tenant VARCHAR NOT NULL, 
	worker VARCHAR NOT NULL, 
	finished_at DOUBLE NOT NULL, 
	requests INTEGER NOT NULL, 
	rounds INTEGER NOT NULL, 
	drafted INTEGER NOT NULL, 
	accepted INTEGER NOT NULL, 
	rejections INTEGER NOT NULL, 
	emitted INTEGER NOT NULL, 
	prompt_tokens INTEGER NOT NULL, 
	draft_ms DOUBLE NOT NULL, 
	verify_ms DOUBLE NOT NULL, 
	CONSTRAINT pk_outcome_log PRIMARY KEY (id)
);
INSERT INTO "outcome_log" VALUES(1,'r0','default','default-000001-36d71f1d','fixed','default','server-1',1000000.0,1,10,40,30,8,40,12,1.5,2.5);
CREATE TABLE position_counters (
	span INTEGER NOT NULL, 
	start INTEGER NOT NULL, 
	route VARCHAR NOT NULL, 
	draft_version VARCHAR NOT NULL, 
	position INTEGER NOT NULL, 
	drafted INTEGER NOT NULL, 
	accepted INTEGER NOT NULL, 
	refused INTEGER NOT NULL, 
	CONSTRAINT pk_position_counters PRIMARY KEY (span, start, route, draft_version, position)
);
INSERT INTO "position_counters" VALUES(60,999960,'default','default-000001-36d71f1d',0,10,8,2);
INSERT INTO "position_counters" VALUES(60,999960,'default','default-000001-36d71f1d',1,8,6,1);
INSERT INTO "position_counters" VALUES(3600,997200,'default','default-000001-36d71f1d',0,10,8,2);
INSERT INTO "position_counters" VALUES(3600,997200,'default','default-000001-36d71f1d',1,8,6,1);
INSERT INTO "position_counters" VALUES(86400,950400,'default','default-000001-36d71f1d',0,10,8,2);
INSERT INTO "position_counters" VALUES(86400,950400,'default','default-000001-36d71f1d',1,8,6,1);
INSERT INTO "position_counters" VALUES(604800,604800,'default','default-000001-36d71f1d',0,10,8,2);
INSERT INTO "position_counters" VALUES(604800,604800,'default','default-000001-36d71f1d',1,8,6,1);
CREATE TABLE route_aliases (
	name VARCHAR NOT NULL, 
	route VARCHAR NOT NULL, 
	CONSTRAINT pk_route_aliases PRIMARY KEY (name), 
	CONSTRAINT fk_route_aliases_route FOREIGN KEY(route) REFERENCES routes (name)
);
INSERT INTO "route_aliases" VALUES('sql','tables');
CREATE TABLE route_background (
	request_id VARCHAR NOT NULL, 
	features BLOB NOT NULL, 
	CONSTRAINT pk_route_background PRIMARY KEY (request_id), 
	CONSTRAINT fk_route_background_request_id FOREIGN KEY(request_id) REFERENCES sample_requests (request_id) ON DELETE CASCADE
);
CREATE TABLE route_examples (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	topic VARCHAR NOT NULL, 
	text VARCHAR NOT NULL, 
	hash VARCHAR NOT NULL, 
	CONSTRAINT pk_route_examples PRIMARY KEY (id), 
	CONSTRAINT uq_route_examples_hash UNIQUE (hash)
);
INSERT INTO "route_examples" VALUES(1,1700000018.0,'sql','SELECT 1','e004ebd5b5532a4b85984a62f8ad48a81aa3460c1ca07701f386135d72cdecf5');
CREATE TABLE route_pins (
	tenant VARCHAR NOT NULL, 
	route VARCHAR NOT NULL, 
	CONSTRAINT pk_route_pins PRIMARY KEY (tenant), 
	CONSTRAINT fk_route_pins_route FOREIGN KEY(route) REFERENCES routes (name)
);
INSERT INTO "route_pins" VALUES('acme','tables');
CREATE TABLE route_proposals (
	id INTEGER NOT NULL, 
	at DOUBLE NOT NULL, 
	kind VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	facts JSON NOT NULL, 
	CONSTRAINT pk_route_proposals PRIMARY KEY (id)
);
CREATE TABLE routes (
	name VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	matches JSON NOT NULL, candidates JSON DEFAULT '[]' NOT NULL, created_at DOUBLE, 
	CONSTRAINT pk_routes PRIMARY KEY (name), 
	CONSTRAINT fk_routes_draft FOREIGN KEY(draft) REFERENCES drafts (name)
);
INSERT INTO "routes" VALUES('default','default','{}','[]',1.79589742289522409438e+09);
INSERT INTO "routes" VALUES('tables','default','{"topic": ["sql"]}','[]',1700000014.0);
CREATE TABLE sample_requests (
	request_id VARCHAR NOT NULL, 
	segment_id VARCHAR NOT NULL, 
	"row" INTEGER NOT NULL, 
	route VARCHAR NOT NULL, 
	tenant VARCHAR NOT NULL, 
	draft_version VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	prompt_len INTEGER NOT NULL, 
	tokens INTEGER NOT NULL, 
	positions INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, 
	holdout BOOLEAN DEFAULT 0 NOT NULL, 
	claimed_by VARCHAR, prompt_hash INTEGER, divergence DOUBLE, failures INTEGER DEFAULT 0 NOT NULL, failed_in VARCHAR, failed_at DOUBLE, set_aside VARCHAR, target VARCHAR, hidden_bytes INTEGER DEFAULT 0 NOT NULL, 
	CONSTRAINT pk_sample_requests PRIMARY KEY (request_id), 
	CONSTRAINT fk_sample_requests_segment_id FOREIGN KEY(segment_id) REFERENCES segments (id), 
	CONSTRAINT fk_sample_requests_claimed_by FOREIGN KEY(claimed_by) REFERENCES training_runs (id)
);
INSERT INTO "sample_requests" VALUES('r0','00000000000000000000000000000007',0,'default','default','default-000000-00000000',1700000000.0,5,9,3,2847,0,'00000000000000000000000000000004',-1945657078874153370,0.2783203125,0,NULL,NULL,NULL,'9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab',0);
INSERT INTO "sample_requests" VALUES('r2','00000000000000000000000000000007',1,'default','default','default-000000-00000000',1700000002.0,5,9,3,2847,0,NULL,1368749760470041136,1.0,0,NULL,NULL,NULL,'9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab',0);
CREATE TABLE segments (
	id VARCHAR NOT NULL, 
	path VARCHAR NOT NULL, 
	created_at DOUBLE NOT NULL, 
	requests INTEGER NOT NULL, 
	positions INTEGER NOT NULL, 
	bytes INTEGER NOT NULL, digest VARCHAR, 
	CONSTRAINT pk_segments PRIMARY KEY (id)
);
INSERT INTO "segments" VALUES('00000000000000000000000000000007','20231114/00000000000000000000000000000007.parquet',1700000028.0,2,6,5694,'29669208fa7ced972ebc1a930cb61a16fcfaa3d99b2d80228a71435f4106fb06');
CREATE TABLE serving (
	worker VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	since DOUBLE NOT NULL, 
	CONSTRAINT pk_serving PRIMARY KEY (worker, draft), 
	CONSTRAINT fk_serving_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_serving_version FOREIGN KEY(version) REFERENCES draft_versions (id)
);
INSERT INTO "serving" VALUES('server-1','default','default-000001-36d71f1d',1700000008.0);
CREATE TABLE targets (
	digest VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	first_seen DOUBLE NOT NULL, 
	served_at DOUBLE NOT NULL, 
	CONSTRAINT pk_targets PRIMARY KEY (digest)
);
INSERT INTO "targets" VALUES('9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab9f2c01ab','llama',1700000001.0,1700000001.0);
CREATE TABLE tenants (
	name VARCHAR NOT NULL, 
	learn BOOLEAN DEFAULT 1 NOT NULL, 
	share BOOLEAN DEFAULT 1 NOT NULL, 
	CONSTRAINT pk_tenants PRIMARY KEY (name)
);
INSERT INTO "tenants" VALUES('acme',1,0);
CREATE TABLE trainers (
	id VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	pid INTEGER NOT NULL, 
	started_at DOUBLE NOT NULL, 
	heartbeat_at DOUBLE NOT NULL, 
	gone_at DOUBLE NOT NULL, 
	doing JSON NOT NULL, 
	paused BOOLEAN NOT NULL, 
	cancels BOOLEAN NOT NULL, 
	CONSTRAINT pk_trainers PRIMARY KEY (id)
);
INSERT INTO "trainers" VALUES('trainer-1','host',2,1700000000.0,1700000000.0,1700000010.0,'{}',0,0);
CREATE TABLE training_leases (
	draft VARCHAR NOT NULL, 
	run_id VARCHAR NOT NULL, 
	CONSTRAINT pk_training_leases PRIMARY KEY (draft), 
	CONSTRAINT fk_training_leases_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_training_leases_run_id FOREIGN KEY(run_id) REFERENCES training_runs (id)
);
CREATE TABLE training_runs (
	id VARCHAR NOT NULL, 
	draft VARCHAR NOT NULL, 
	holder VARCHAR NOT NULL, 
	state VARCHAR NOT NULL, 
	started_at DOUBLE NOT NULL, 
	heartbeat_at DOUBLE NOT NULL, 
	lease_until DOUBLE NOT NULL, 
	parent VARCHAR NOT NULL, 
	request_ids JSON NOT NULL, 
	settings JSON NOT NULL, 
	finished_at DOUBLE, 
	version VARCHAR, 
	result JSON NOT NULL, replayed JSON DEFAULT '[]' NOT NULL, tenants JSON DEFAULT '[]' NOT NULL, 
	CONSTRAINT pk_training_runs PRIMARY KEY (id), 
	CONSTRAINT fk_training_runs_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_training_runs_parent FOREIGN KEY(parent) REFERENCES draft_versions (id)
);
INSERT INTO "training_runs" VALUES('00000000000000000000000000000004','default','trainer-1','published',1700000005.0,1700000005.0,1700000065.0,'default-000000-9aa77ff6','["r0", "r1"]','{"began": {"why": "interval", "words": "1 requests or more waited"}}',1700000007.0,'default-000001-36d71f1d','{"steps": 3}','[]','["default"]');
CREATE TABLE version_aliases (
	draft VARCHAR NOT NULL, 
	name VARCHAR NOT NULL, 
	version VARCHAR NOT NULL, 
	CONSTRAINT pk_version_aliases PRIMARY KEY (draft, name), 
	CONSTRAINT fk_version_aliases_draft FOREIGN KEY(draft) REFERENCES drafts (name), 
	CONSTRAINT fk_version_aliases_version FOREIGN KEY(version) REFERENCES draft_versions (id)
);
INSERT INTO "version_aliases" VALUES('default','good','default-000001-36d71f1d');
CREATE TABLE workers (
	id VARCHAR NOT NULL, 
	host VARCHAR NOT NULL, 
	pid INTEGER NOT NULL, 
	url VARCHAR NOT NULL, 
	started_at DOUBLE NOT NULL, 
	heartbeat_at DOUBLE NOT NULL, 
	gone_at DOUBLE NOT NULL, 
	state VARCHAR NOT NULL, 
	drains BOOLEAN DEFAULT 0 NOT NULL, 
	running INTEGER NOT NULL, 
	waiting INTEGER NOT NULL, 
	rate DOUBLE NOT NULL, 
	drafts JSON NOT NULL, 
	trouble VARCHAR, 
	CONSTRAINT pk_workers PRIMARY KEY (id)
);
INSERT INTO "workers" VALUES('server-1','host',1,'http://127.0.0.1:8000',1700000000.0,1700000000.0,1700000010.0,'serving',0,0,0,0.0,'{}',NULL);
CREATE INDEX ix_training_runs_draft_started_at ON training_runs (draft, started_at);
CREATE INDEX ix_sample_requests_segment_id ON sample_requests (segment_id);
CREATE INDEX ix_sample_requests_tenant ON sample_requests (tenant);
CREATE INDEX ix_sample_requests_created_at ON sample_requests (created_at);
CREATE INDEX ix_sample_requests_claimed_by ON sample_requests (claimed_by);
CREATE INDEX ix_sample_requests_route_holdout_claimed_by_created_at ON sample_requests (route, holdout, claimed_by, created_at);
CREATE INDEX ix_outcome_log_request_id ON outcome_log (request_id);
CREATE INDEX ix_outcome_log_tenant ON outcome_log (tenant);
CREATE INDEX ix_outcome_log_draft_version_id ON outcome_log (draft_version, id);
CREATE INDEX ix_route_examples_topic ON route_examples (topic);
CREATE INDEX ix_outcome_counters_draft_version_span_start ON outcome_counters (draft_version, span, start);
CREATE INDEX ix_sample_requests_draft_version_created_at ON sample_requests (draft_version, created_at);
CREATE INDEX ix_workers_gone_at ON workers (gone_at);
CREATE INDEX ix_canaries_draft ON canaries (draft);
CREATE INDEX ix_audit_action ON audit (action);
CREATE INDEX ix_audit_subject ON audit (subject);
CREATE INDEX ix_trainers_gone_at ON trainers (gone_at);
COMMIT;
