-- The stream: topics, partitions and messages. The constraints refuse what a producer could write by plain SQL and nobody
-- could read: an offset from which none can be counted on, a message without an id, a kind that is none. total_size, here
-- and in other tables, limits how much is read at once: it is generated, so that nobody can understate it. Of a body
-- that is kept beside its message it counts the size of that, which the reference begins with.

CREATE TABLE IF NOT EXISTS ems_topic (
  id INT UNSIGNED NOT NULL AUTO_INCREMENT,
  name VARCHAR(190) NOT NULL,
  kind ENUM('cluster', 'broadcast') NOT NULL DEFAULT 'cluster',
  partitions SMALLINT UNSIGNED NOT NULL DEFAULT 1,
  rule ENUM('rw', 'r', 'w', 'none') NOT NULL DEFAULT 'rw',
  max_message_bytes INT UNSIGNED NOT NULL,
  retention_s BIGINT UNSIGNED NULL,
  keep_done_s BIGINT UNSIGNED NULL,
  age_wins TINYINT NOT NULL DEFAULT 0,
  created_at DATETIME(6) NOT NULL,
  priorities TINYINT UNSIGNED NOT NULL DEFAULT 1,
  archive_first TINYINT NOT NULL DEFAULT 0,
  server VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
  former VARCHAR(2000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  PRIMARY KEY (id),
  UNIQUE KEY name (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- A transaction that writes for a topic outside its stream share-locks the topic's row here until its commit; a
-- deletion of the topic locks it exclusively. The row outlives the topic: a search for a missing row would lock the gap
-- where new ones go. moved: another server keeps the topic; last_move: the number of the last move to or
-- from this server.

CREATE TABLE IF NOT EXISTS ems_topic_guard (
  topic_id INT UNSIGNED NOT NULL,
  deleted_at DATETIME(6) NULL,
  moved TINYINT UNSIGNED NOT NULL DEFAULT 0,
  last_move INT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (topic_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_partition (
  topic_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  next_offset BIGINT UNSIGNED NOT NULL DEFAULT 1,
  log_start BIGINT UNSIGNED NOT NULL DEFAULT 1,
  trimmed BIGINT UNSIGNED NOT NULL DEFAULT 1,
  high_watermark BIGINT UNSIGNED NOT NULL DEFAULT 1,
  closed TINYINT NOT NULL DEFAULT 0,
  done_below BIGINT UNSIGNED NOT NULL DEFAULT 1,
  done_at DATETIME(6) NULL,
  PRIMARY KEY (topic_id, `partition`),
  CONSTRAINT ems_partition_sound CHECK (next_offset < 4611686018427387904)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_message (
  topic_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  uid BINARY(16) NULL,
  kind ENUM('message', 'tombstone', 'cancelled') NOT NULL DEFAULT 'message',
  `key` VARBINARY(255) NULL,
  tag VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  size INT UNSIGNED NOT NULL DEFAULT 0,
  born_at DATETIME(6) NOT NULL,
  producer_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  total_size INT UNSIGNED GENERATED ALWAYS AS (LENGTH(headers) + IF(LEFT(body, 14) = '{"ems-large":"' AND CONVERT(SUBSTRING(body, 15, 8) USING latin1) REGEXP '^[0-9a-f]+$', GREATEST(LENGTH(body), LEAST(CAST(CONV(SUBSTRING(body, 15, 8), 16, 10) AS UNSIGNED), 1073741824)), LENGTH(body))) STORED,
  PRIMARY KEY (topic_id, `partition`, `offset`),
  UNIQUE KEY uid (topic_id, uid),
  CONSTRAINT ems_message_sound CHECK (`offset` < 4611686018427387904 AND kind <> '' AND (kind <> 'message' OR uid IS NOT NULL))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Bodies that are too large for a message, in chunks. One belongs to the messages with its uid that refer to it: in the
-- outbox, the stream or the dead letters. It is written with its message, and the beat deletes it after the last of them.

CREATE TABLE IF NOT EXISTS ems_large_body (
  body_id BINARY(16) NOT NULL,
  topic_id INT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  size INT UNSIGNED NOT NULL,
  created_at DATETIME(6) NOT NULL,
  PRIMARY KEY (body_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_body_chunk (
  body_id BINARY(16) NOT NULL,
  chunk SMALLINT UNSIGNED NOT NULL,
  data MEDIUMBLOB NOT NULL,
  PRIMARY KEY (body_id, chunk)
) ENGINE=InnoDB;

-- Results of tasks that are too large for their row, likewise; who may read results may read these.

CREATE TABLE IF NOT EXISTS ems_result_chunk (
  body_id BINARY(16) NOT NULL,
  chunk SMALLINT UNSIGNED NOT NULL,
  data MEDIUMBLOB NOT NULL,
  PRIMARY KEY (body_id, chunk)
) ENGINE=InnoDB;

-- The outbox: messages that may not be read yet, such as delayed ones.

CREATE TABLE IF NOT EXISTS ems_outbox (
  topic_id INT UNSIGNED NOT NULL,
  due_at DATETIME(6) NOT NULL,
  `partition` SMALLINT UNSIGNED NULL,
  uid BINARY(16) NOT NULL,
  `key` VARBINARY(255) NULL,
  tag VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  producer_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  created_at DATETIME(6) NOT NULL,
  level TINYINT UNSIGNED NOT NULL DEFAULT 0,
  total_size INT UNSIGNED GENERATED ALWAYS AS (LENGTH(headers) + LENGTH(body)) STORED,
  PRIMARY KEY (topic_id, due_at, uid),
  UNIQUE KEY uid (topic_id, uid)
) ENGINE=InnoDB;

-- Messages that other programs write by plain SQL. This table is an interface: publishers name the columns topic to uid.
-- The beat moves rows into the outbox, and keeps those that it must refuse.

CREATE TABLE IF NOT EXISTS ems_publish (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  topic VARCHAR(190) NOT NULL,
  body LONGTEXT NOT NULL,
  `key` VARCHAR(255) NULL,
  tag VARCHAR(255) NULL,
  headers TEXT NULL,
  task VARCHAR(190) NULL,
  priority SMALLINT NULL,
  delay_s DOUBLE NULL,
  uid VARCHAR(64) NULL,
  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  refused_at DATETIME(6) NULL,
  error TEXT NULL,
  total_size INT UNSIGNED GENERATED ALWAYS AS (LENGTH(body) + COALESCE(LENGTH(headers), 0)) STORED,
  PRIMARY KEY (id),
  KEY waiting (refused_at, id, total_size)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Idempotent publishing.

CREATE TABLE IF NOT EXISTS ems_dedup (
  topic_id INT UNSIGNED NOT NULL,
  `key` VARBINARY(255) NOT NULL,
  uid BINARY(16) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  look_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, `key`),
  KEY look (look_at)
) ENGINE=InnoDB;

-- The groups and the log of who consumes what.

CREATE TABLE IF NOT EXISTS ems_group (
  id INT UNSIGNED NOT NULL AUTO_INCREMENT,
  topic_id INT UNSIGNED NOT NULL,
  name VARCHAR(190) NOT NULL,
  timeout_ms BIGINT UNSIGNED NOT NULL,
  ladder VARCHAR(1000) NOT NULL,
  max_attempts SMALLINT UNSIGNED NOT NULL,
  filter VARCHAR(4000) NOT NULL DEFAULT '',
  paused TINYINT NOT NULL DEFAULT 0,
  created_at DATETIME(6) NOT NULL,
  ordering ENUM('none', 'partition', 'key') NOT NULL DEFAULT 'none',
  held_tasks TINYINT NOT NULL DEFAULT 0,  -- some of its tasks are in ems_task_pause
  PRIMARY KEY (id),
  UNIQUE KEY name (topic_id, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Settings of a group's handlers for failures that their workers cannot report themselves: attempts and ladder, NULL
-- for the group's own. One row for each task, or one with an empty name for a subscription; workers write them when
-- they start. requires: the tags that a worker needs to run the group, the same in all of its rows.

CREATE TABLE IF NOT EXISTS ems_handler (
  group_id INT UNSIGNED NOT NULL,
  name VARCHAR(190) NOT NULL,
  on_error ENUM('retry', 'dead', 'ignore') NOT NULL,
  ladder TEXT CHARACTER SET ascii NULL,
  max_attempts SMALLINT UNSIGNED NULL,
  requires VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  PRIMARY KEY (group_id, name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Limits of single tasks, as their code declares them: a token bucket of permits to start; until when messages that wait
-- for a permit have their times, those that came new and those that have waited before; and how many ever waited for a
-- place.

CREATE TABLE IF NOT EXISTS ems_task_limit (
  group_id INT UNSIGNED NOT NULL,
  task VARCHAR(190) NOT NULL,
  rate VARCHAR(32) CHARACTER SET ascii NULL,
  max_running SMALLINT UNSIGNED NULL,
  per_s DOUBLE NULL,
  capacity DOUBLE NOT NULL,
  tokens DOUBLE NOT NULL,
  filled_at DATETIME(6) NOT NULL,
  new_until DATETIME(6) NOT NULL,
  back_until DATETIME(6) NOT NULL,
  queued BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (group_id, task)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ems_task_slot (
  group_id INT UNSIGNED NOT NULL,
  task VARCHAR(190) NOT NULL,
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  weight SMALLINT UNSIGNED NOT NULL,
  PRIMARY KEY (group_id, task, client_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Tasks that are paused: workers put their messages back until they are resumed.

CREATE TABLE IF NOT EXISTS ems_task_pause (
  group_id INT UNSIGNED NOT NULL,
  task VARCHAR(190) NOT NULL,
  paused_at DATETIME(6) NOT NULL,
  PRIMARY KEY (group_id, task)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Figures of tasks, which workers with `task_figures_s` add up for ten minutes at a time, and delete after a day; a
-- subscription has an empty name. The buckets are those of the waits and the runs of messages, by their length.

CREATE TABLE IF NOT EXISTS ems_task_figure (
  slot_at DATETIME NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  task VARCHAR(190) NOT NULL,
  runs BIGINT UNSIGNED NOT NULL,
  failed BIGINT UNSIGNED NOT NULL,
  retried BIGINT UNSIGNED NOT NULL,
  dead BIGINT UNSIGNED NOT NULL,
  cpu_us BIGINT UNSIGNED NOT NULL,
  cpu_runs BIGINT UNSIGNED NOT NULL,
  last_error VARCHAR(600) NULL,
  error_at DATETIME(6) NULL,
  PRIMARY KEY (slot_at, group_id, task)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ems_task_bucket (
  slot_at DATETIME NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  task VARCHAR(190) NOT NULL,
  bucket TINYINT UNSIGNED NOT NULL,
  waits BIGINT UNSIGNED NOT NULL,
  runs BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (slot_at, group_id, task, bucket)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ems_cursor (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  next_offset BIGINT UNSIGNED NOT NULL,
  skipped BIGINT UNSIGNED NOT NULL DEFAULT 0,
  PRIMARY KEY (group_id, `partition`)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_claim (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  lo BIGINT UNSIGNED NOT NULL,
  claim_id BIGINT UNSIGNED NOT NULL,
  hi BIGINT UNSIGNED NOT NULL,
  acked_to BIGINT UNSIGNED NOT NULL,
  running BIGINT UNSIGNED NULL,
  state ENUM('start', 'waiting', 'done') NOT NULL,
  source ENUM('stream', 'retry') NOT NULL,
  isolation TINYINT NOT NULL DEFAULT 0,
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,
  claimed_at DATETIME(6) NOT NULL,
  progress_at DATETIME(6) NOT NULL,
  deadline_at DATETIME(6) NOT NULL,
  not_before DATETIME(6) NULL,
  detached TINYINT NOT NULL DEFAULT 0,
  PRIMARY KEY (group_id, `partition`, lo, claim_id),
  KEY live (state, group_id)
) ENGINE=InnoDB;

-- Failures are recorded per message.

CREATE TABLE IF NOT EXISTS ems_retry (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  attempt SMALLINT UNSIGNED NOT NULL,
  due_at DATETIME(6) NOT NULL,
  claim_id BIGINT UNSIGNED NULL,
  isolation TINYINT NOT NULL DEFAULT 0,
  last_error TEXT CHARACTER SET utf8mb4 NULL,
  `key` VARBINARY(255) NULL,
  PRIMARY KEY (group_id, `partition`, `offset`),
  KEY due (group_id, claim_id, due_at),
  KEY turn (group_id, `partition`, claim_id, due_at),
  KEY lane (group_id, `partition`, `key`, `offset`)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_attempt (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  ended_at DATETIME(6) NOT NULL,
  attempt SMALLINT UNSIGNED NOT NULL,
  outcome ENUM('done', 'failed', 'rejected', 'timeout', 'orphaned', 'ignored', 'expired', 'cancelled') NOT NULL,
  ran_ms BIGINT UNSIGNED NULL,
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NULL,
  error TEXT CHARACTER SET utf8mb4 NULL,
  PRIMARY KEY (group_id, `partition`, `offset`, ended_at, attempt),
  KEY recent (group_id, ended_at, outcome)
) ENGINE=InnoDB;

-- What handlers logged, by attempt, of workers that keep it.

CREATE TABLE IF NOT EXISTS ems_attempt_log (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  attempt SMALLINT UNSIGNED NOT NULL,
  log_lines MEDIUMTEXT CHARACTER SET utf8mb4 NOT NULL,
  left_out INT UNSIGNED NOT NULL,
  written_at DATETIME(6) NOT NULL,
  PRIMARY KEY (group_id, `partition`, `offset`, attempt),
  KEY written (written_at)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_dead (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  `key` VARBINARY(255) NULL,
  tag VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  born_at DATETIME(6) NOT NULL,
  producer_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  dead_at DATETIME(6) NOT NULL,
  attempts SMALLINT UNSIGNED NOT NULL,
  task VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  error_type VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
  reason TEXT CHARACTER SET utf8mb4 NOT NULL,
  error TEXT CHARACTER SET utf8mb4 NOT NULL,
  PRIMARY KEY (group_id, `partition`, `offset`),
  KEY recent (group_id, dead_at),
  KEY class (group_id, task, error_type, dead_at),
  KEY uid (uid)
) ENGINE=InnoDB;

-- Dead letters that the beat made, until a worker process of the group has told its middleware.

CREATE TABLE IF NOT EXISTS ems_dead_notice (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  noted_at DATETIME(6) NOT NULL,
  PRIMARY KEY (group_id, `partition`, `offset`),
  KEY noted (noted_at)
) ENGINE=InnoDB;

-- Offsets that a group never ran, and why: every skip is recorded.

CREATE TABLE IF NOT EXISTS ems_skip (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  lo BIGINT UNSIGNED NOT NULL,
  hi BIGINT UNSIGNED NOT NULL,
  reason VARCHAR(190) CHARACTER SET utf8mb4 NOT NULL,
  skipped_at DATETIME(6) NOT NULL,
  PRIMARY KEY (group_id, `partition`, lo, skipped_at)
) ENGINE=InnoDB;

-- Bodies below the log start offset that were put back for a requeued dead letter.

CREATE TABLE IF NOT EXISTS ems_restored (
  topic_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic_id, `partition`, `offset`)
) ENGINE=InnoDB;

-- Messages that were cancelled while clients had them. Workers read it, the beat deletes what no client has any more.

CREATE TABLE IF NOT EXISTS ems_cancel (
  group_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  `offset` BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (group_id, `partition`, `offset`)
) ENGINE=InnoDB;

-- Results of tasks, if they were requested. Group 0: the message was cancelled, whatever its task says of results;
-- group 4294967295: the clients that had it then are in ems_cancel, as long as they have it.

CREATE TABLE IF NOT EXISTS ems_result (
  topic_id INT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  state ENUM('done', 'failed', 'cancelled') NOT NULL,
  body LONGBLOB NULL,
  error_type VARCHAR(255) NULL,
  error TEXT NULL,
  traceback TEXT NULL,
  ended_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, uid, group_id),
  KEY expires (expires_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Messages to send at set times. The beat needs no app: the call is stored here as it was declared.

CREATE TABLE IF NOT EXISTS ems_schedule (
  name VARCHAR(190) NOT NULL,
  spec VARCHAR(200) NOT NULL,
  timezone VARCHAR(64) NOT NULL,
  catch_up ENUM('last', 'all', 'none') NOT NULL,
  topic VARCHAR(190) NOT NULL,
  `key` VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  next_at DATETIME(6) NOT NULL,
  last_at DATETIME(6) NULL,
  declared_at DATETIME(6) NOT NULL,
  next_set_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),  -- when next_at was computed
  origin ENUM('code', 'user') NOT NULL DEFAULT 'code',
  paused BOOLEAN NOT NULL DEFAULT 0,
  task VARCHAR(190) NOT NULL DEFAULT '',
  tag VARBINARY(255) NULL,
  expires_s DOUBLE NULL,
  PRIMARY KEY (name),
  KEY due (paused, next_at),
  KEY tag (tag)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Effects that must happen once although their messages may be redelivered.

CREATE TABLE IF NOT EXISTS ems_once (
  effect VARBINARY(255) NOT NULL,
  state ENUM('begun', 'done') NOT NULL,
  token BINARY(16) NOT NULL,
  until_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (effect),
  KEY expires (expires_at)
) ENGINE=InnoDB;

-- Leases of clients, leaders of services, and the version and id of the stream.

CREATE TABLE IF NOT EXISTS ems_client (
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  process_id VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  started_at DATETIME(6) NOT NULL,
  renewed_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  servers VARCHAR(4000) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'main',
  tags VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  PRIMARY KEY (client_id),
  KEY process (process_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_leader (
  service VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  holder VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (service)
) ENGINE=InnoDB;

-- The versions of the tables. oldest_program: the version of the tables that a program must know, at least, to work with
-- these; its tables may be older, then it does not use what was added.

CREATE TABLE IF NOT EXISTS ems_schema_version (
  version INT UNSIGNED NOT NULL,
  stream_id BINARY(16) NOT NULL,
  oldest_program INT UNSIGNED NOT NULL,
  applied_at DATETIME(6) NOT NULL,
  PRIMARY KEY (version)
) ENGINE=InnoDB;

-- The same of the tables of extensions.

CREATE TABLE IF NOT EXISTS ems_extension_version (
  extension VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version INT UNSIGNED NOT NULL,
  oldest_program INT UNSIGNED NOT NULL,
  applied_at DATETIME(6) NOT NULL,
  PRIMARY KEY (extension, version)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Steps of migrations of tables that hold rows, so that a migration that was interrupted goes on. place: the last row of
-- a backfill that is done. Those of EMS itself have no extension.

CREATE TABLE IF NOT EXISTS ems_migration_step (
  extension VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  version INT UNSIGNED NOT NULL,
  step SMALLINT UNSIGNED NOT NULL,
  place TEXT CHARACTER SET ascii COLLATE ascii_bin NULL,
  seen_rows BIGINT UNSIGNED NOT NULL DEFAULT 0,
  begun_at DATETIME(6) NOT NULL,
  done_at DATETIME(6) NULL,
  PRIMARY KEY (extension, version, step)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Groups that skip messages that would be too late, and the conditions.

CREATE TABLE IF NOT EXISTS ems_skip_policy (
  group_id INT UNSIGNED NOT NULL,
  most_waiting BIGINT UNSIGNED NULL,
  older_ms BIGINT UNSIGNED NULL,
  below_priority TINYINT UNSIGNED NULL,
  PRIMARY KEY (group_id)
) ENGINE=InnoDB;

-- Positions of the readers of broadcast topics that have a stable name.

CREATE TABLE IF NOT EXISTS ems_position (
  topic_id INT UNSIGNED NOT NULL,
  name VARCHAR(400) NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  next_offset BIGINT UNSIGNED NOT NULL,
  reader BINARY(16) NULL,
  deaths TINYINT UNSIGNED NOT NULL DEFAULT 0,
  stored_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, name, `partition`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Alarms: the rules, the alarms that they raised, and the deliveries still to be made.

CREATE TABLE IF NOT EXISTS ems_alarm_rule (
  name VARCHAR(190) NOT NULL,
  metric VARCHAR(64) NOT NULL,
  above DOUBLE NOT NULL,
  for_s DOUBLE NOT NULL,
  within_s DOUBLE NOT NULL,
  least INT UNSIGNED NOT NULL,
  topic VARCHAR(190) NULL,
  group_name VARCHAR(190) NULL,
  webhook VARCHAR(1000) NULL,
  command VARCHAR(1000) NULL,
  repeat_s DOUBLE NOT NULL DEFAULT 0,
  slack VARCHAR(1000) NULL,
  alertmanager VARCHAR(1000) NULL,
  created_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ems_alarm (
  rule VARCHAR(190) NOT NULL,
  topic VARCHAR(190) NOT NULL,
  group_name VARCHAR(190) NOT NULL,
  alarm_id BINARY(16) NOT NULL,
  state ENUM('pending', 'firing') NOT NULL,
  value DOUBLE NOT NULL,
  since DATETIME(6) NOT NULL,
  fired_at DATETIME(6) NULL,
  told_at DATETIME(6) NULL,
  PRIMARY KEY (rule, topic, group_name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

CREATE TABLE IF NOT EXISTS ems_alarm_event (
  event_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  alarm_id BINARY(16) NOT NULL,
  rule VARCHAR(190) NOT NULL,
  target ENUM('webhook', 'slack', 'alertmanager', 'command') NOT NULL,
  body TEXT NOT NULL,
  tries INT UNSIGNED NOT NULL DEFAULT 0,
  created_at DATETIME(6) NOT NULL,
  due_at DATETIME(6) NOT NULL,
  PRIMARY KEY (event_id),
  KEY due (due_at),
  KEY alarm (alarm_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- An alarm that fires has told_at once its receivers were notified; a silence keeps it NULL.
CREATE TABLE IF NOT EXISTS ems_alarm_silence (
  silence_id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  rule VARCHAR(190) NULL,
  topic VARCHAR(190) NULL,
  group_name VARCHAR(190) NULL,
  reason VARCHAR(500) NOT NULL,
  created_at DATETIME(6) NOT NULL,
  ends_at DATETIME(6) NOT NULL,
  PRIMARY KEY (silence_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Rows that a Spark job writes are staged here until the job is committed: rows in chunks, the tasks that wrote them,
-- and the ledger of committed batches. A task whose sink is NULL is open; one whose sink is empty is given up.

CREATE TABLE IF NOT EXISTS ems_stage (
  token BINARY(16) NOT NULL,
  chunk INT UNSIGNED NOT NULL,
  place INT UNSIGNED NOT NULL,
  topic_id INT UNSIGNED NOT NULL,
  `partition` SMALLINT UNSIGNED NULL,
  level TINYINT UNSIGNED NOT NULL,
  delay_us BIGINT UNSIGNED NULL,
  uid BINARY(16) NOT NULL,
  `key` VARBINARY(255) NULL,
  tag VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  PRIMARY KEY (token, chunk, place)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_stage_task (
  token BINARY(16) NOT NULL,
  begun_at DATETIME(6) NOT NULL,
  sink VARBINARY(190) NULL,
  batch BIGINT UNSIGNED NULL,
  place INT UNSIGNED NULL,
  chunks INT UNSIGNED NULL,
  PRIMARY KEY (token),
  KEY batch (sink, batch, place),
  KEY begun (begun_at)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_ledger (
  sink VARBINARY(190) NOT NULL,
  batch BIGINT UNSIGNED NOT NULL,
  state ENUM('moving', 'done') NOT NULL,
  moved INT UNSIGNED NOT NULL DEFAULT 0,
  `rows` BIGINT UNSIGNED NOT NULL,
  committed_at DATETIME(6) NOT NULL,
  moved_at DATETIME(6) NOT NULL,
  PRIMARY KEY (sink, batch),
  KEY moving (state, moved_at)
) ENGINE=InnoDB;

-- Progress of running messages, as reported by their handlers.

CREATE TABLE IF NOT EXISTS ems_progress (
  topic_id INT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  attempt SMALLINT UNSIGNED NOT NULL,
  fraction DOUBLE NULL,
  told VARCHAR(500) NOT NULL,
  reported_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, uid, group_id),
  KEY client (client_id),
  KEY reported (reported_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Cluster-wide limits of groups: a token bucket of permits to start, and the slots that each client takes.

CREATE TABLE IF NOT EXISTS ems_limit (
  group_id INT UNSIGNED NOT NULL,
  rate VARCHAR(32) CHARACTER SET ascii NULL,
  max_running SMALLINT UNSIGNED NULL,
  max_running_per_key SMALLINT UNSIGNED NULL,
  per_s DOUBLE NULL,
  capacity DOUBLE NOT NULL,
  tokens DOUBLE NOT NULL,
  filled_at DATETIME(6) NOT NULL,
  PRIMARY KEY (group_id)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_slot (
  group_id INT UNSIGNED NOT NULL,
  client_id VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
  weight SMALLINT UNSIGNED NOT NULL,
  PRIMARY KEY (group_id, client_id)
) ENGINE=InnoDB;

-- What people changed: one row for each transaction of an action, written by it. The action's id sorts by time.

CREATE TABLE IF NOT EXISTS ems_audit (
  action_id BINARY(16) NOT NULL,
  step INT UNSIGNED NOT NULL,
  actor VARCHAR(190) NOT NULL,
  action VARCHAR(64) NOT NULL,
  target VARCHAR(400) NOT NULL,
  detail VARCHAR(2000) NOT NULL,
  changed BIGINT UNSIGNED NOT NULL,
  changed_at DATETIME(6) NOT NULL,
  PRIMARY KEY (action_id, step)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Time series of groups, for charts: counts at one moment, and running totals from which rates are computed. Group 0 is
-- a topic itself, and topic 0 the whole stream.

CREATE TABLE IF NOT EXISTS ems_sample (
  topic_id INT UNSIGNED NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  sampled_at DATETIME(6) NOT NULL,
  unclaimed BIGINT UNSIGNED NOT NULL,
  claimed BIGINT UNSIGNED NOT NULL,
  waiting BIGINT UNSIGNED NOT NULL,
  retries BIGINT UNSIGNED NOT NULL,
  running INT UNSIGNED NOT NULL,
  dead BIGINT UNSIGNED NOT NULL,
  oldest_ms BIGINT UNSIGNED NULL,
  written BIGINT UNSIGNED NOT NULL,
  finished BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (topic_id, group_id, sampled_at),
  KEY sampled (sampled_at)
) ENGINE=InnoDB;

-- The latest sample of each group, of each topic (group 0) and of the stream (topic 0), so that a page of many of them
-- reads only the rows that it shows. length ranks them: what waits for a group, the offsets that a topic keeps; of the
-- stream it is the number of partitions, and of groups x partitions.

CREATE TABLE IF NOT EXISTS ems_latest (
  topic_id INT UNSIGNED NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  kind ENUM('stream', 'topic', 'group') NOT NULL,
  length BIGINT UNSIGNED NOT NULL,
  unclaimed BIGINT UNSIGNED NOT NULL,
  claimed BIGINT UNSIGNED NOT NULL,
  waiting BIGINT UNSIGNED NOT NULL,
  retries BIGINT UNSIGNED NOT NULL,
  running INT UNSIGNED NOT NULL,
  dead BIGINT UNSIGNED NOT NULL,
  skipped BIGINT UNSIGNED NOT NULL,
  oldest_ms BIGINT UNSIGNED NULL,
  written BIGINT UNSIGNED NOT NULL,
  topic_count INT UNSIGNED NOT NULL,
  group_count INT UNSIGNED NOT NULL,
  sampled_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, group_id),
  KEY ranked (kind, length)
) ENGINE=InnoDB;

-- Readers outside the groups that hold retention: how far each is, and until when it holds. The reader is the process
-- that took the name last; lost_at is set when a hold was not renewed in time, and retention goes on without it.

CREATE TABLE IF NOT EXISTS ems_hold (
  topic_id INT UNSIGNED NOT NULL,
  name VARCHAR(190) NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  held_from BIGINT UNSIGNED NOT NULL,
  next_offset BIGINT UNSIGNED NOT NULL,
  reader BINARY(16) NOT NULL,
  limit_s BIGINT UNSIGNED NOT NULL,
  begun_at DATETIME(6) NOT NULL,
  renewed_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  lost_at DATETIME(6) NULL,
  PRIMARY KEY (topic_id, name, `partition`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
