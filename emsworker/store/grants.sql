-- name: producer
-- Sends, also delayed, with transactions and with dedup keys, and asks for results. It reads no message's body, deletes
-- nothing, and creates no topics. (MariaDB asks for UPDATE of every column of an INSERT .. ON DUPLICATE KEY UPDATE.)
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT ON {database}.ems_cursor TO {user};
GRANT SELECT ON {database}.ems_claim TO {user};
GRANT SELECT ON {database}.ems_result TO {user};
GRANT SELECT, UPDATE (next_offset) ON {database}.ems_partition TO {user};
GRANT SELECT (topic_id, `partition`, `offset`, uid, kind, born_at), INSERT ON {database}.ems_message TO {user};
GRANT SELECT (topic_id, due_at, uid, `partition`, created_at), INSERT, UPDATE ON {database}.ems_pending TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_dedup TO {user};
GRANT SELECT (group_id, `partition`, `offset`) ON {database}.ems_retry TO {user};
GRANT SELECT (group_id, `partition`, `offset`, uid, dead_at, reason, error) ON {database}.ems_dead TO {user};

-- name: worker
-- Runs what is sent, does the beat's duties, and sends as well. It creates, changes and deletes no topics and groups, and
-- neither changes nor deletes dead letters.
GRANT SELECT ON {database}.ems_schema_version TO {user};
GRANT SELECT ON {database}.ems_topic TO {user};
GRANT SELECT ON {database}.ems_group TO {user};
GRANT SELECT, UPDATE ON {database}.ems_partition TO {user};
GRANT SELECT, UPDATE ON {database}.ems_cursor TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_message TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_pending TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_dedup TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_claim TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_retry TO {user};
GRANT SELECT, INSERT, DELETE ON {database}.ems_attempt TO {user};
GRANT SELECT, INSERT ON {database}.ems_dead TO {user};
GRANT SELECT ON {database}.ems_skip TO {user};
GRANT SELECT, DELETE ON {database}.ems_restored TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_result TO {user};
GRANT SELECT, INSERT, UPDATE ON {database}.ems_schedule TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_once TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_client TO {user};
GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.ems_leader TO {user};

-- name: reader
-- Looks: lists, lag, traces, dead letters with their bodies. It changes nothing.
GRANT SELECT ON {pattern}.* TO {user};

-- name: admin
-- Creates the tables, and changes whatever is in them.
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX ON {pattern}.* TO {user};
