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

-- name: set_autocommit
SET SESSION autocommit = 1

-- name: get_account
SELECT CURRENT_USER()
