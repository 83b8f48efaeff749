-- name: begin
-- One snapshot for all statements that follow. Only for a stream under test: all rows of its tables are read.
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ

-- name: start
START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY

-- name: list_topics
SELECT id, name FROM ems_topic WHERE kind = 'cluster'

-- name: list_groups
SELECT id, topic_id, name, ordering, timeout_ms FROM ems_group

-- name: list_log_starts
SELECT topic_id, `partition`, log_start FROM ems_partition

-- name: read_places
-- A page of one partition.
SELECT `offset`, uid, kind FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s ORDER BY `offset` LIMIT %(limit)s

-- name: list_outbox
SELECT topic_id, uid FROM ems_outbox

-- name: list_cursors
SELECT group_id, `partition`, next_offset FROM ems_cursor

-- name: list_claims
SELECT group_id, `partition`, lo, hi, acked_to, state, source, client_id FROM ems_claim ORDER BY group_id, `partition`, lo, claim_id

-- name: list_retries
SELECT group_id, `partition`, `offset` FROM ems_retry

-- name: list_dead
SELECT group_id, `partition`, `offset` FROM ems_dead

-- name: list_attempts
-- The last column is true for outcomes that are followed by neither another attempt nor a dead letter.
SELECT DISTINCT group_id, `partition`, `offset`, outcome IN ('ignored', 'expired', 'rejected', 'cancelled') FROM ems_attempt

-- name: list_skips
SELECT group_id, `partition`, lo, hi FROM ems_skip

-- name: list_clients
-- Clients, and the seconds since their leases expired; less than 0 if they have not.
SELECT client_id, COALESCE(TIMESTAMPDIFF(MICROSECOND, expires_at, NOW(6)) / 1000000, 0) FROM ems_client

-- name: list_connections
-- Connections of this user to this database; no privilege is needed to see one's own.
SELECT id FROM information_schema.processlist
WHERE db = DATABASE() AND user = SUBSTRING_INDEX(USER(), '@', 1) AND id <> CONNECTION_ID()

-- name: kill
KILL %(id)s
