-- name: get_clock
-- The server's clock in seconds since 1970.
SELECT UNIX_TIMESTAMP(NOW(6))

-- name: get_largest_limit
-- The topic that accepts the largest messages.
SELECT name, max_message_bytes FROM ems_topic ORDER BY max_message_bytes DESC, name LIMIT 1

-- name: try_create
-- None of these statements changes anything: with the privilege they fail because the table is not there.
CREATE TABLE ems_no_such_table LIKE ems_no_such_source

-- name: try_alter
ALTER TABLE ems_no_such_table ADD COLUMN x INT

-- name: try_index
CREATE INDEX x ON ems_no_such_table (x)

-- name: try_select
SELECT {column} FROM {table} LIMIT 0

-- name: try_insert
EXPLAIN INSERT IGNORE INTO {table} ({column}) VALUES (DEFAULT)

-- name: try_update
UPDATE {table} SET {column} = {column} WHERE 1 = 0

-- name: try_delete
DELETE FROM {table} WHERE 1 = 0
