-- name: set_session
-- All settings that our statements depend on, whatever the server's defaults are and whatever a handler has changed: a
-- clock in UTC, strict writes, all rows, no time limit (the client has its own), no wait for a lock that outlives a
-- lease, and READ COMMITTED: under REPEATABLE READ an empty poll blocks inserts (gap locks), and reads after a lock
-- would be stale. docs/discussions/sessions.md lists each with its reason.
SET SESSION time_zone = '+00:00', SESSION sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
  SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 50, SESSION wait_timeout = 28800,
  SESSION net_read_timeout = 60, SESSION net_write_timeout = 60,
  SESSION sql_select_limit = 18446744073709551615, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1,
  SESSION unique_checks = 1, SESSION foreign_key_checks = 1, SESSION completion_type = 0, SESSION sql_auto_is_null = 0,
  SESSION group_concat_max_len = 1048576,
  SESSION character_set_client = utf8mb4, SESSION character_set_results = utf8mb4, SESSION character_set_connection = utf8mb4
  /*!80000 , SESSION transaction_isolation = 'READ-COMMITTED', SESSION transaction_read_only = 0, SESSION max_execution_time = 0 */
  /*M! , SESSION tx_isolation = 'READ-COMMITTED', SESSION tx_read_only = 0, SESSION max_statement_time = 0,
  SESSION idle_transaction_timeout = 0, SESSION idle_readonly_transaction_timeout = 0, SESSION idle_write_transaction_timeout = 0 */

-- name: get_packet_limit
-- A session keeps the limit with which it began.
SELECT @@SESSION.max_allowed_packet

-- name: set_autocommit
SET SESSION autocommit = 1

-- name: use_database
USE %(database)s

-- name: unset_autocommit
-- For a lent transaction: statements after a rollback by the server are never committed by themselves.
SET SESSION autocommit = 0

-- name: mark_transaction
-- A savepoint ends with its transaction: it proves that the transaction that is committed is the one that began.
SAVEPOINT ems_transaction

-- name: prove_transaction
-- Ends the packet with error 1305 if the transaction has been committed or rolled back meanwhile, for any reason.
RELEASE SAVEPOINT ems_transaction

-- name: release_locks
DO RELEASE_ALL_LOCKS()

-- name: unlock_tables
UNLOCK TABLES

-- name: begin
START TRANSACTION

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: assert_one_matched
-- Ends the packet with error 1242 (two rows in a scalar subquery) unless the previous statement matched one row: the
-- fence of every ending statement, without a round trip and without holding locks while the client computes. If the
-- client has died meanwhile, MySQL may report -1 instead of 1: then the packet ends too, and all is rolled back.
SET @ems_one = (SELECT 1 UNION ALL SELECT 2 FROM DUAL WHERE ROW_COUNT() <> 1)

-- name: show_read_only
-- Each server has some of these: replicas, demoted primaries, and servers that were started on read-only files.
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', 'offline_mode')
