-- name: instantly
-- Only the table's description changes.
ALGORITHM=INSTANT

-- name: in_place
-- The table is built anew, or a key is, while rows are read and written.
ALGORITHM=INPLACE, LOCK=NONE

-- name: wait_briefly
-- In case that nobody watches the wait any more. It cannot be shorter.
SET SESSION lock_wait_timeout = 1

-- name: get_connection
SELECT CONNECTION_ID()

-- name: read_table
-- Waits as everybody does who comes after an ALTER that waits. No list of processes tells it everywhere: MySQL refuses
-- information_schema.PROCESSLIST while anybody runs a prepared statement with bytes, and performance_schema may be off.
SELECT 1 FROM %(table)s LIMIT 0

-- name: read_nothing
SELECT 1

-- name: interrupt
KILL QUERY %(id)s

-- name: count_columns
SELECT COUNT(*) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %(table)s AND COLUMN_NAME = %(name)s

-- name: count_keys
SELECT COUNT(*) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %(table)s AND INDEX_NAME = %(name)s
