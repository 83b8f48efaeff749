-- name: set_session
-- All settings that our statements depend on, whatever the server's defaults are and whatever a handler has changed: a
-- clock in UTC, strict writes, all rows, no time limit (the client has its own), no wait for a lock that outlives a
-- lease, and READ COMMITTED: under REPEATABLE READ an empty poll blocks inserts (gap locks), and reads after a lock
-- would be stale. docs/discussions/sessions.md lists each with its reason; tests/store/test_settings.py goes through all
-- variables of the server, and fails for one that is neither set here nor below nor known to be harmless.
--
-- Texts name their character set: that of a handler's connection, such as ucs2, would make them unreadable.
-- MariaDB makes a table of a list with 1,000 values or more, and reads all rows of the other one to join them: not here.
-- max_join_size stands before sql_big_selects, which it changes.
SET SESSION time_zone = _latin1'+00:00',
  SESSION sql_mode = _latin1'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',
  SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 50, SESSION wait_timeout = 28800,
  SESSION net_read_timeout = 60, SESSION net_write_timeout = 60, SESSION max_join_size = DEFAULT,
  SESSION sql_select_limit = 18446744073709551615, SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1,
  SESSION unique_checks = 1, SESSION foreign_key_checks = 1, SESSION completion_type = 0, SESSION sql_auto_is_null = 0,
  SESSION group_concat_max_len = 1048576, SESSION max_sort_length = DEFAULT,
  SESSION div_precision_increment = DEFAULT, SESSION default_week_format = DEFAULT, SESSION lc_time_names = DEFAULT,
  SESSION lc_messages = DEFAULT
  /*M!100318 , SESSION in_predicate_conversion_threshold = 0 */
  /*!80011 , SESSION default_collation_for_utf8mb4 = DEFAULT */
  , SESSION character_set_client = utf8mb4, SESSION character_set_results = utf8mb4,
  SESSION character_set_connection = utf8mb4
  /*!80000 , SESSION transaction_isolation = _latin1'READ-COMMITTED', SESSION transaction_read_only = 0,
  SESSION max_execution_time = 0 */
  /*M! , SESSION insert_id = 0, SESSION tx_isolation = _latin1'READ-COMMITTED', SESSION tx_read_only = 0, SESSION max_statement_time = 0,
  SESSION idle_transaction_timeout = 0, SESSION idle_readonly_transaction_timeout = 0,
  SESSION idle_write_transaction_timeout = 0, SESSION check_constraint_checks = DEFAULT, SESSION old_mode = DEFAULT,
  SESSION standard_compliant_cte = DEFAULT */
  /*M!110200 , SESSION character_set_collations = _latin1'' */

-- name: set_resources
-- What costs time or memory, but changes no result: only a handler that runs more than DML changes it, and only after
-- such a one it is set, because that takes as long as a short statement.
SET SESSION optimizer_switch = DEFAULT, SESSION optimizer_search_depth = DEFAULT, SESSION optimizer_prune_level = DEFAULT,
  SESSION max_seeks_for_key = DEFAULT, SESSION eq_range_index_dive_limit = DEFAULT, SESSION join_buffer_size = DEFAULT,
  SESSION sort_buffer_size = DEFAULT, SESSION read_buffer_size = DEFAULT, SESSION read_rnd_buffer_size = DEFAULT,
  SESSION tmp_table_size = DEFAULT, SESSION max_heap_table_size = DEFAULT, SESSION long_query_time = DEFAULT,
  SESSION big_tables = DEFAULT, SESSION sql_buffer_result = DEFAULT
  /*!80000 , SESSION range_optimizer_max_mem_size = DEFAULT, SESSION cte_max_recursion_depth = DEFAULT */
  /*M! , SESSION innodb_strict_mode = DEFAULT, SESSION tcp_nodelay = DEFAULT, SESSION join_cache_level = DEFAULT,
  SESSION use_stat_tables = DEFAULT, SESSION optimizer_use_condition_selectivity = DEFAULT,
  SESSION in_predicate_conversion_threshold = DEFAULT, SESSION tmp_disk_table_size = DEFAULT,
  SESSION max_recursive_iterations = DEFAULT */

-- name: set_clock
-- NOW() is the time again, if a handler has stopped it. MariaDB may refuse this (secure_timestamp), to the handler too.
SET SESSION timestamp = DEFAULT

-- name: set_autocommit
SET SESSION autocommit = 1

-- name: get_account
SELECT CURRENT_USER()
