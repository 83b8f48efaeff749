-- name: set_isolation
-- Under REPEATABLE READ an empty poll blocks inserts (gap locks), and reads after a lock would be stale.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: set_session
-- One clock in UTC, strict writes, and no wait for a lock that outlives a lease.
SET time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', innodb_lock_wait_timeout = 5, autocommit = 1

-- name: begin
START TRANSACTION

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: assert_one_matched
-- Ends the packet with error 1242 (two rows in a scalar subquery) unless the statement before matched one row:
-- the fence of every ending statement, without a round trip and without holding locks while the client thinks. When its
-- client has died meanwhile MySQL may say -1 instead of 1: then the packet ends too, and all is rolled back.
SET @ems_one = (SELECT 1 UNION ALL SELECT 2 FROM DUAL WHERE ROW_COUNT() <> 1)

-- name: show_read_only
-- Each server has some of these: replicas, demoted primaries, and servers that were started on read-only files.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', 'offline_mode')
