-- name: show_replica_status
SHOW REPLICA STATUS

-- name: show_variables
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode', 'group_replication_consistency')

-- name: show_status
SHOW GLOBAL STATUS WHERE Variable_name IN ('Rpl_semi_sync_source_clients', 'Rpl_semi_sync_master_clients', 'Slaves_connected')

-- name: count_dumps
-- Threads that send the binary log to replicas, as far as the user may see them.
SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE LEFT(COMMAND, 11) = 'Binlog Dump'
