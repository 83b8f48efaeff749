-- name: producer
-- Sends messages (also delayed, in transactions and with dedup keys), and reads results. It reads no bodies, changes
-- and deletes no messages, and creates no topics. (UPDATE of created_at: a repeated INSERT leaves the first row as it
-- is by setting it to itself.)
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_topic_guard TO {user};
GRANT SELECT (id, topic_id, name) ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_cursor TO {user};
GRANT SELECT (group_id, `partition`, lo, hi, acked_to, state, source) ON {database}.ems_claim TO {user};
GRANT SELECT ON {database}.ems_result TO {user};
GRANT SELECT ON {database}.ems_progress TO {user};
GRANT SELECT, UPDATE (next_offset) ON {database}.ems_partition TO {user};
GRANT SELECT (topic_id, `partition`, `offset`, uid, kind), INSERT ON {database}.ems_message TO {user};
GRANT SELECT (topic_id, uid, created_at), INSERT, UPDATE (created_at) ON {database}.ems_outbox TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_dedup TO {user};
GRANT SELECT (group_id, `partition`, `offset`) ON {database}.ems_retry TO {user};
GRANT SELECT (group_id, `partition`, `offset`, reason, error) ON {database}.ems_dead TO {user};

-- name: producer_auto_create
-- Creates the topics that it sends to; so it could also change existing topics.
GRANT INSERT, UPDATE ON {database}.ems_topic TO {user};
GRANT INSERT ON {database}.ems_topic_guard TO {user};
GRANT INSERT, UPDATE (topic_id, `partition`, closed) ON {database}.ems_partition TO {user};

-- name: producer_cancel
-- Cancels messages that have not run yet; so it could also cancel the messages of others.
GRANT SELECT (`key`), UPDATE (kind) ON {database}.ems_message TO {user};
GRANT DELETE ON {database}.ems_outbox TO {user};
GRANT SELECT (ordering) ON {database}.ems_group TO {user};
GRANT UPDATE (skipped) ON {database}.ems_cursor TO {user};
GRANT SELECT (claim_id, due_at, `key`), UPDATE (due_at), DELETE ON {database}.ems_retry TO {user};

-- name: publisher
-- Sends by plain SQL, from any language, a trigger or a procedure; it reads nothing but the schema's version.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT INSERT (topic, body, `key`, tag, headers, task, priority, delay_s, uid) ON {database}.ems_publish TO {user};

-- name: worker
-- Runs messages, and sends too; it leaves the services of the beat to others (`ems worker --no-beat`), unless it is
-- allowed to do them. It creates, changes and deletes no topics and groups, changes and deletes no messages, and neither
-- changes nor deletes dead letters.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_topic_guard TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT, UPDATE (next_offset) ON {database}.ems_partition TO {user};
GRANT SELECT, UPDATE ON {database}.ems_cursor TO {user};
GRANT SELECT, INSERT ON {database}.ems_message TO {user};
GRANT SELECT, INSERT, UPDATE (created_at), DELETE ON {database}.ems_outbox TO {user};
GRANT SELECT (id, topic, created_at, refused_at) ON {database}.ems_publish TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_dedup TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_claim TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_retry TO {user};
GRANT SELECT, INSERT ON {database}.ems_attempt TO {user};
GRANT SELECT, INSERT ON {database}.ems_dead TO {user};
GRANT SELECT, DELETE ON {database}.ems_dead_notice TO {user};
GRANT SELECT ON {database}.ems_skip_policy TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_result TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_progress TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_schedule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_once TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_client TO {user};
GRANT SELECT ON {database}.ems_leader TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_position TO {user};
GRANT SELECT ON {database}.ems_hold TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_handler TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_limit TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_slot TO {user};
GRANT SELECT (name, metric, above, for_s, within_s, least, topic, group_name, repeat_s, created_at) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT ON {database}.ems_alarm TO {user};
GRANT SELECT ON {database}.ems_alarm_silence TO {user};
GRANT SELECT ON {database}.ems_sample TO {user};
GRANT SELECT ON {database}.ems_latest TO {user};

-- name: beat
-- Does the services of the beat: recovery, the relay, retention, schedules, alarms, samples. It deletes messages, as
-- retention does, and old rows of the audit; it creates, changes and deletes no topics and groups. (UPDATE of a name:
-- MySQL requires it to lock a row.)
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_topic_guard TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_handler TO {user};
GRANT SELECT, UPDATE (next_offset, log_start, trimmed, high_watermark) ON {database}.ems_partition TO {user};
GRANT SELECT, UPDATE ON {database}.ems_cursor TO {user};
GRANT SELECT, INSERT, UPDATE (`offset`), DELETE ON {database}.ems_message TO {user};
GRANT SELECT, INSERT, UPDATE (created_at), DELETE ON {database}.ems_outbox TO {user};
GRANT SELECT, UPDATE (refused_at, error), DELETE ON {database}.ems_publish TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_dedup TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_claim TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_retry TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_attempt TO {user};
GRANT SELECT, INSERT ON {database}.ems_dead TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_dead_notice TO {user};
GRANT INSERT ON {database}.ems_skip TO {user};
GRANT SELECT ON {database}.ems_skip_policy TO {user};
GRANT SELECT, DELETE ON {database}.ems_restored TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_result TO {user};
GRANT SELECT, DELETE ON {database}.ems_progress TO {user};
GRANT SELECT, UPDATE (next_at, last_at) ON {database}.ems_schedule TO {user};
GRANT SELECT, DELETE ON {database}.ems_once TO {user};
GRANT SELECT, UPDATE (renewed_at, expires_at), DELETE ON {database}.ems_client TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_leader TO {user};
GRANT SELECT, UPDATE (next_offset) ON {database}.ems_position TO {user};
GRANT SELECT, UPDATE (lost_at), DELETE ON {database}.ems_hold TO {user};
GRANT SELECT, UPDATE ON {database}.ems_limit TO {user};
GRANT SELECT, DELETE ON {database}.ems_slot TO {user};
GRANT SELECT, UPDATE (name) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_alarm TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_alarm_event TO {user};
GRANT SELECT ON {database}.ems_alarm_silence TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_sample TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_latest TO {user};
GRANT SELECT (action_id, step), DELETE ON {database}.ems_audit TO {user};
GRANT SELECT (name, expires_at), DELETE ON {database}.ems_celery_result TO {user};
GRANT SELECT (name, expires_at), DELETE ON {database}.ems_celery_chord TO {user};
GRANT SELECT (chord), DELETE ON {database}.ems_celery_chord_part TO {user};

-- name: worker_auto_create
-- Creates the topics and groups that its app names; so it could also change existing ones.
GRANT INSERT, UPDATE ON {database}.ems_topic TO {user};
GRANT INSERT ON {database}.ems_topic_guard TO {user};
GRANT INSERT, UPDATE ON {database}.ems_group TO {user};
GRANT INSERT, UPDATE (topic_id, `partition`, closed) ON {database}.ems_partition TO {user};
GRANT INSERT ON {database}.ems_cursor TO {user};

-- name: worker_cancel
-- For tasks that cancel messages that have not run yet.
GRANT UPDATE (kind) ON {database}.ems_message TO {user};

-- name: celery
-- Celery programs, clients and workers alike: what a worker does, and queues that they declare, purge and delete.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_topic TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_topic_guard TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_group TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_partition TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_cursor TO {user};
GRANT SELECT, INSERT, UPDATE (`offset`), DELETE ON {database}.ems_message TO {user};
GRANT SELECT, INSERT, UPDATE (created_at), DELETE ON {database}.ems_outbox TO {user};
GRANT SELECT, UPDATE (refused_at, error), DELETE ON {database}.ems_publish TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_dedup TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_claim TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_retry TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_attempt TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_dead TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_dead_notice TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_skip TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_skip_policy TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_restored TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_result TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_progress TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_schedule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_once TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_client TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_leader TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_position TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_handler TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_limit TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_slot TO {user};
GRANT SELECT, UPDATE (name) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_alarm TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_alarm_event TO {user};
GRANT SELECT ON {database}.ems_alarm_silence TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_sample TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_latest TO {user};
GRANT SELECT (action_id, step), DELETE ON {database}.ems_audit TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_celery_result TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_celery_chord TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_celery_chord_part TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_exchange TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_queue TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_binding TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_celery_schedule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_hold TO {user};

-- name: sink
-- Writes from Spark: stages rows, and moves committed ones into the stream. It reads no message's body.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_topic_guard TO {user};
GRANT SELECT, UPDATE (next_offset) ON {database}.ems_partition TO {user};
GRANT SELECT (topic_id, `partition`, `offset`), INSERT ON {database}.ems_message TO {user};
GRANT INSERT ON {database}.ems_outbox TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_stage TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_stage_task TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_ledger TO {user};

-- name: sink_auto_create
GRANT INSERT, UPDATE ON {database}.ems_topic TO {user};
GRANT INSERT ON {database}.ems_topic_guard TO {user};
GRANT INSERT, UPDATE (topic_id, `partition`, closed) ON {database}.ems_partition TO {user};

-- name: viewer
-- Reads lists, lag, traces and charts, for people who watch. It reads no body, no header, no error and no result, and
-- changes nothing. It sees keys and tags, the names of tasks and of classes of errors, and what handlers report of
-- their progress.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_partition TO {user};
GRANT SELECT (topic_id, `partition`, `offset`, uid, kind, `key`, tag, size, born_at, producer_id) ON {database}.ems_message TO {user};
GRANT SELECT (topic_id, due_at, uid, `partition`, `key`, tag, producer_id, created_at, level) ON {database}.ems_outbox TO {user};
GRANT SELECT (id, topic, created_at, refused_at) ON {database}.ems_publish TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_cursor TO {user};
GRANT SELECT ON {database}.ems_claim TO {user};
GRANT SELECT (group_id, `partition`, `offset`, attempt, due_at, claim_id, isolation, `key`) ON {database}.ems_retry TO {user};
GRANT SELECT (group_id, `partition`, `offset`, ended_at, attempt, outcome, ran_ms, client_id) ON {database}.ems_attempt TO {user};
GRANT SELECT (group_id, `partition`, `offset`, uid, `key`, tag, born_at, producer_id, dead_at, attempts, task, error_type) ON {database}.ems_dead TO {user};
GRANT SELECT ON {database}.ems_skip TO {user};
GRANT SELECT ON {database}.ems_skip_policy TO {user};
GRANT SELECT (name, spec, timezone, catch_up, topic, `key`, next_at, last_at, declared_at) ON {database}.ems_schedule TO {user};
GRANT SELECT ON {database}.ems_client TO {user};
GRANT SELECT ON {database}.ems_leader TO {user};
GRANT SELECT ON {database}.ems_position TO {user};
GRANT SELECT ON {database}.ems_hold TO {user};
GRANT SELECT ON {database}.ems_progress TO {user};
GRANT SELECT ON {database}.ems_limit TO {user};
GRANT SELECT ON {database}.ems_slot TO {user};
GRANT SELECT ON {database}.ems_alarm TO {user};
GRANT SELECT ON {database}.ems_alarm_silence TO {user};
GRANT SELECT (name, metric, above, for_s, within_s, least, topic, group_name, repeat_s, created_at) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT ON {database}.ems_sample TO {user};
GRANT SELECT ON {database}.ems_latest TO {user};
GRANT SELECT ON {database}.ems_audit TO {user};

-- name: reader
-- Reads lists, lag, traces, messages and dead letters with their bodies, also with Spark. It changes nothing. It cannot
-- read the addresses to which alarms are sent, because they can hold secrets.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_partition TO {user};
GRANT SELECT ON {database}.ems_message TO {user};
GRANT SELECT ON {database}.ems_outbox TO {user};
GRANT SELECT ON {database}.ems_publish TO {user};
GRANT SELECT ON {database}.ems_result TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_cursor TO {user};
GRANT SELECT ON {database}.ems_claim TO {user};
GRANT SELECT ON {database}.ems_retry TO {user};
GRANT SELECT ON {database}.ems_attempt TO {user};
GRANT SELECT ON {database}.ems_dead TO {user};
GRANT SELECT ON {database}.ems_skip TO {user};
GRANT SELECT ON {database}.ems_skip_policy TO {user};
GRANT SELECT ON {database}.ems_schedule TO {user};
GRANT SELECT ON {database}.ems_client TO {user};
GRANT SELECT ON {database}.ems_leader TO {user};
GRANT SELECT ON {database}.ems_position TO {user};
GRANT SELECT ON {database}.ems_hold TO {user};
GRANT SELECT ON {database}.ems_progress TO {user};
GRANT SELECT ON {database}.ems_limit TO {user};
GRANT SELECT ON {database}.ems_slot TO {user};
GRANT SELECT ON {database}.ems_alarm TO {user};
GRANT SELECT ON {database}.ems_alarm_silence TO {user};
GRANT SELECT (name, metric, above, for_s, within_s, least, topic, group_name, repeat_s, created_at) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT ON {database}.ems_sample TO {user};
GRANT SELECT ON {database}.ems_latest TO {user};
GRANT SELECT ON {database}.ems_audit TO {user};

-- name: reader_hold
-- Holds messages for its named streaming queries; so it could also keep retention from deleting any, and release the
-- holds of others. It changes nothing else.
GRANT INSERT, UPDATE ON {database}.ems_hold TO {user};

-- name: operator
-- Reads what a reader reads, and puts things right: requeues and deletes dead letters, pauses and changes groups, sets
-- limits and skip policies, moves cursors, replays, skips, cancels and purges, and runs or deletes schedules. It
-- creates and deletes no topics, groups and tables, and does not change topics or alarms, but silences alarms. (UPDATE
-- of a column that nothing changes: MySQL requires it to lock a row.)
GRANT SELECT, UPDATE (refused_at, error), DELETE ON {database}.ems_publish TO {user};
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_partition TO {user};
GRANT SELECT ON {database}.ems_message TO {user};
GRANT SELECT ON {database}.ems_outbox TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_cursor TO {user};
GRANT SELECT ON {database}.ems_claim TO {user};
GRANT SELECT ON {database}.ems_retry TO {user};
GRANT SELECT ON {database}.ems_attempt TO {user};
GRANT SELECT ON {database}.ems_dead TO {user};
GRANT SELECT ON {database}.ems_skip TO {user};
GRANT SELECT ON {database}.ems_skip_policy TO {user};
GRANT SELECT ON {database}.ems_schedule TO {user};
GRANT SELECT ON {database}.ems_client TO {user};
GRANT SELECT ON {database}.ems_leader TO {user};
GRANT SELECT ON {database}.ems_position TO {user};
GRANT SELECT ON {database}.ems_hold TO {user};
GRANT SELECT ON {database}.ems_progress TO {user};
GRANT SELECT ON {database}.ems_limit TO {user};
GRANT SELECT ON {database}.ems_slot TO {user};
GRANT SELECT ON {database}.ems_alarm TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_alarm_silence TO {user};
GRANT SELECT (name, metric, above, for_s, within_s, least, topic, group_name, repeat_s, created_at) ON {database}.ems_alarm_rule TO {user};
GRANT SELECT ON {database}.ems_sample TO {user};
GRANT SELECT ON {database}.ems_latest TO {user};
GRANT SELECT ON {database}.ems_topic_guard TO {user};
GRANT SELECT, INSERT ON {database}.ems_restored TO {user};
GRANT INSERT, UPDATE (kind) ON {database}.ems_message TO {user};
GRANT INSERT, DELETE ON {database}.ems_outbox TO {user};
GRANT UPDATE (timeout_ms, ladder, max_attempts, filter, paused) ON {database}.ems_group TO {user};
GRANT UPDATE (next_offset, skipped) ON {database}.ems_cursor TO {user};
GRANT INSERT, UPDATE, DELETE ON {database}.ems_claim TO {user};
GRANT INSERT, UPDATE, DELETE ON {database}.ems_retry TO {user};
GRANT DELETE ON {database}.ems_dead TO {user};
GRANT INSERT ON {database}.ems_skip TO {user};
GRANT INSERT, UPDATE, DELETE ON {database}.ems_skip_policy TO {user};
GRANT UPDATE (next_at, last_at), DELETE ON {database}.ems_schedule TO {user};
GRANT DELETE ON {database}.ems_position TO {user};
GRANT DELETE ON {database}.ems_hold TO {user};
GRANT INSERT, UPDATE, DELETE ON {database}.ems_limit TO {user};
GRANT DELETE ON {database}.ems_slot TO {user};
GRANT SELECT, INSERT ON {database}.ems_audit TO {user};

-- name: admin
-- Creates the tables, and changes any of their rows.
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX ON {pattern}.* TO {user};
