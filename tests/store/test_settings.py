"""Every variable of a session that a handler may set is as before for the next statement of EMS, or is harmless."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pymysql
import pytest

from emsworker.core.errors import TransactionGone
from emsworker.core.url import DatabaseUrl
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.connection import Connection
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from tests.support.servers import _execute
from tests.support.streams import Stream

_VALUES = (
    "'ucs2'", "0", "1", "2", "4000000000", "12345", "'ON'", "'OFF'", "'latin1'", "'latin1_bin'", "'utf8mb4_general_ci'",
    "'x'", "'MyISAM'", "'ja_JP'", "'SYSTEM'",
)  # fmt: skip
# Kept as the handler leaves them, each group with its reason.
_HARMLESS = {
    "only statements that EMS never runs: DDL, LOAD DATA, LOCK TABLES, EXPLAIN, SHOW CREATE, versioned tables": """
        alter_algorithm character_set_database character_set_filesystem character_set_server collation_database
        collation_server column_compression_threshold column_compression_zlib_level column_compression_zlib_strategy
        column_compression_zlib_wrap default_storage_engine default_tmp_storage_engine end_markers_in_json
        enable_secondary_engine_statistics explain_format explain_json_format_version explicit_defaults_for_timestamp
        external_table_secondary_storage_engine histogram_size histogram_type analyze_max_length
        analyze_sample_percentage innodb_compression_default innodb_ddl_buffer_size innodb_ddl_threads
        innodb_default_encryption_key_id innodb_ft_enable_stopword innodb_ft_user_stopword_table innodb_table_locks
        keep_files_on_create max_points_in_geometry old_alter_table print_identified_with_as_hex
        restrict_fk_on_non_standard_key select_into_disk_sync show_create_table_skip_secondary_engine
        show_create_table_verbosity show_gipk_in_create_table_and_information_schema sql_if_exists
        sql_quote_show_create storage_engine system_versioning_alter_history system_versioning_asof
        system_versioning_insert_history updatable_views_with_limit generated_random_password_length old_passwords
        block_encryption_mode default_regex_flags enable_cascade_triggers require_row_format rbr_exec_mode
        bulk_insert_buffer_size low_priority_updates max_sp_recursion_depth information_schema_stats_expiry
        binlog_alter_two_phase windowing_use_high_precision
    """,
    "other engines than InnoDB": """
        aria_repair_threads aria_sort_buffer_size aria_stats_method deadlock_search_depth_long
        deadlock_search_depth_short deadlock_timeout_long deadlock_timeout_short max_delayed_threads
        max_insert_delayed_threads myisam_repair_threads myisam_sort_buffer_size myisam_stats_method
        preload_buffer_size transaction_allow_batching use_secondary_engine secondary_engine_cost_threshold
    """,
    "logs, traces and warnings": """
        log_queries_not_using_indexes log_slow_admin_statements log_slow_disabled_statements log_slow_filter
        log_slow_max_warnings log_slow_min_examined_row_limit log_slow_query log_slow_query_time log_slow_rate_limit
        log_slow_slave_statements log_slow_verbosity log_warnings max_error_count min_examined_row_limit note_verbosity
        optimizer_trace optimizer_trace_features optimizer_trace_limit optimizer_trace_max_mem_size
        optimizer_trace_offset profiling profiling_history_size progress_report_time session_track_gtids
        session_track_schema session_track_state_change session_track_system_variables session_track_transaction_info
        slow_query_log sql_notes sql_warnings terminology_use_previous
    """,
    "sizes of single allocations, and fine points of plans": """
        expensive_subquery_limit join_buffer_space_limit max_length_for_sort_data max_rowid_filter_size mrr_buffer_size
        max_tmp_tables optimizer_adjust_secondary_key_costs optimizer_extra_pruning_depth
        optimizer_join_limit_pref_ratio optimizer_max_sel_arg_weight optimizer_max_sel_args optimizer_max_subgraph_pairs
        optimizer_selectivity_sampling_limit query_alloc_block_size query_cache_strip_comments query_cache_type
        query_cache_wlock_invalidate query_prealloc_size range_alloc_block_size rowid_merge_buff_size
        set_operations_buffer_size tmp_memory_table_size transaction_alloc_block_size transaction_prealloc_size
        thread_pool_priority
    """,
    "ids of rows that are only unique, and read back by LAST_INSERT_ID(expr)": """
        auto_increment_increment auto_increment_offset identity last_insert_id insert_id
    """,
    "random numbers, replication by another tool, Galera's own (set_galera), the client's side of the protocol": """
        rand_seed1 rand_seed2 default_master_connection sql_slave_skip_counter max_relay_log_size pseudo_slave_mode
        skip_parallel_replication skip_replication group_replication_consistency interactive_timeout net_retry_count
        innodb_parallel_read_threads wsrep_causal_reads wsrep_dirty_reads wsrep_osu_method wsrep_retry_autocommit
        wsrep_sync_wait old innodb_snapshot_isolation
    """,
    "refuse a statement with an error that drops the connection": "max_session_mem_used parser_max_mem_size",
}
# These at least are set by the test: a loop that changes nothing would prove nothing.
_CHANGED = {
    "autocommit", "character_set_connection", "character_set_results", "collation_connection", "div_precision_increment",
    "foreign_key_checks", "lc_time_names", "max_join_size", "optimizer_switch", "sort_buffer_size", "sql_mode",
    "sql_select_limit", "time_zone", "unique_checks",
}  # fmt: skip


@dataclass
class Handlers:
    """Sessions of a user without privileges, who may set what any user may."""

    session: Session

    def run(self, *statements: str) -> None:
        """Run a handler, and commit it."""
        with self.session.lend() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        self.commit()

    def commit(self) -> None:
        packet = self.session.packet()
        packet.take_back()
        packet.commit_lent()
        packet.send()

    def value(self, name: str) -> object:
        return self.session.rows(Sql(f"SELECT @@SESSION.{name}"))[0][0]

    def change(self, name: str) -> bool:
        """Run a handler that gives a variable another value; false if none of the values is accepted."""
        before = self.value(name)
        with self.session.lend() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            changed = any(_set(connection, name, value, before) for value in _VALUES)
        self.commit()
        return changed


def _set(connection: Connection, name: str, value: str, before: object) -> bool:
    with connection.cursor() as cursor:
        try:
            cursor.execute(f"SET SESSION {name} = {value}")
        except pymysql.MySQLError:
            return False
        try:
            cursor.execute(f"SELECT @@SESSION.{name}")
            return cursor.fetchone() != (before,)
        except (pymysql.MySQLError, UnicodeDecodeError):  # as nobody can read it any more, it is another one
            return True


@pytest.fixture
def handlers(server: Server, stream: Stream) -> Iterator[Handlers]:
    url = DatabaseUrl.parse(stream.url)
    account = f"'plain'@'{url.servers[0][0]}'"
    _execute(server.admin_url, f"CREATE USER {account} IDENTIFIED BY 'x'")
    _execute(server.admin_url, f"GRANT ALL ON `{url.database}`.* TO {account}")
    host, port = url.servers[0]
    with Database(f"mysql://plain:x@{host}:{port}/{url.database}").session() as session:
        yield Handlers(session)
    _execute(server.admin_url, f"DROP USER {account}")


def _variables(stream: Stream) -> Iterator[str]:
    """Yield the variables that a session has."""
    for name, _ in stream.rows("SHOW SESSION VARIABLES"):
        with suppress(pymysql.MySQLError):  # a global one, or one that has no value for a SELECT
            stream.rows(f"SELECT @@SESSION.{name}")
            yield name


def test_each_variable_that_a_handler_can_set_is_restored_or_harmless(handlers: Handlers, stream: Stream) -> None:
    harmless = {name for names in _HARMLESS.values() for name in names.split()} | {"timestamp"}  # by itself, below
    changed, kept = set(), set()
    for name in sorted({*_variables(stream)} - harmless):
        before = handlers.value(name)
        if handlers.change(name):
            changed.add(name)
            kept |= {name} if handlers.value(name) != before else set()
    assert changed >= _CHANGED
    assert kept == set()


@pytest.mark.parametrize("timestamp", [1, 2_000_000_000])
@pytest.mark.parametrize("ends", ["commits", "fails"])
def test_a_clock_that_a_handler_has_stopped_goes_again(handlers: Handlers, timestamp: int, ends: str) -> None:
    with handlers.session.lend() as connection, connection.cursor() as cursor:
        cursor.execute(f"SET timestamp = {timestamp}")
    if ends == "commits":
        handlers.commit()
    else:
        handlers.session.rollback()
    now = Sql("SELECT ABS(TIMESTAMPDIFF(SECOND, NOW(), SYSDATE())) < 60, NOW(6)")
    (first,), (second,) = handlers.session.rows(now), handlers.session.rows(now)
    assert first[0] == second[0] == 1 and first[1] != second[1]


def test_a_transaction_that_ended_is_noticed_in_any_character_set(handlers: Handlers) -> None:
    with pytest.raises(TransactionGone):
        handlers.run("SET character_set_results = ucs2", "COMMIT")
