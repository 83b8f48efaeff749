-- name: get_clock
-- The server's clock in seconds since 1970.
SELECT UNIX_TIMESTAMP(NOW(6))

-- name: get_largest_limit
-- The topic that accepts the largest messages.
SELECT name, max_message_bytes FROM ems_topic ORDER BY max_message_bytes DESC, name LIMIT 1

-- name: get_longest_timeout
-- The group whose messages may run longest, and for how many seconds. A program that runs those of a group without a
-- limit keeps its own connections.
SELECT t.name, g.name, g.timeout_ms / 1000 FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id
WHERE g.timeout_ms < %(unlimited_ms)s ORDER BY g.timeout_ms DESC, t.name, g.name LIMIT 1

-- name: list_engines
SELECT TABLE_NAME, COALESCE(ENGINE, 'none') FROM information_schema.TABLES
WHERE TABLE_SCHEMA = DATABASE() AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME

-- name: show_expel_timeout
-- Only a server with the plugin of Group Replication has it.
SHOW GLOBAL VARIABLES WHERE Variable_name = 'group_replication_member_expel_timeout'

-- name: show_idle_timeouts
-- Seconds of idleness after which a connection is closed, 0 for never. The server decides which of these exist.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wait_timeout', 'idle_transaction_timeout', 'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout')

-- name: show_own_idle_timeouts
SHOW SESSION VARIABLES WHERE Variable_name IN ('wait_timeout', 'idle_transaction_timeout', 'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout')

-- name: try_create
-- None of these statements changes anything: with the privilege they fail because the table does not exist.
CREATE TABLE ems_no_such_table LIKE ems_no_such_source

-- name: try_alter
ALTER TABLE ems_no_such_table ADD COLUMN x INT

-- name: try_index
CREATE INDEX x ON ems_no_such_table (x)

-- name: try_select
SELECT %(column)s FROM %(table)s LIMIT 0

-- name: try_insert
EXPLAIN INSERT IGNORE INTO %(table)s (%(column)s) VALUES (DEFAULT)

-- name: try_update
UPDATE %(table)s SET %(column)s = %(column)s WHERE 1 = 0

-- name: try_delete
DELETE FROM %(table)s WHERE 1 = 0

-- name: try_room
-- In the table that messages need to grow. No topic has the number 0, and a leader is alone, so that nobody waits for it.
INSERT INTO ems_message (topic_id, `partition`, `offset`, kind, headers, body, born_at) VALUES (0, 0, 0, 'tombstone', '', REPEAT('x', 65536), NOW(6))
