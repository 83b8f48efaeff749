-- name: lock_migration
-- Concurrent migrations run one after the other (a lock of the server, held by the connection). The name of a lock has
-- at most 64 characters, and the name of a database alone may have 64. The wait stays below our read timeout.
SELECT GET_LOCK(CONCAT('ems_migrate:', LEFT(SHA2(DATABASE(), 256), 40)), 30)

-- name: unlock_migration
SELECT RELEASE_LOCK(CONCAT('ems_migrate:', LEFT(SHA2(DATABASE(), 256), 40)))

-- name: find_version_table
SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'ems_schema_version'

-- name: get_version
SELECT MAX(version), MAX(oldest_program) FROM ems_schema_version

-- name: add_version
INSERT INTO ems_schema_version (version, stream_id, oldest_program, applied_at) VALUES (%(version)s, %(stream_id)s, %(oldest_program)s, NOW(6))

-- name: list_extension_versions
SELECT extension, MAX(version), MAX(oldest_program) FROM ems_extension_version GROUP BY extension

-- name: add_extension_version
INSERT INTO ems_extension_version (extension, version, oldest_program, applied_at) VALUES (%(extension)s, %(version)s, %(oldest_program)s, NOW(6))

-- name: get_stream_id
-- The identity of the stream: it separates the counters of two databases in one Redis.
SELECT stream_id FROM ems_schema_version WHERE version = 1

-- name: get_identity_of_stream
-- On a connection of the caller, which may use another database.
SELECT stream_id FROM %(database)s.ems_schema_version WHERE version = 1

-- name: get_now
SELECT UTC_TIMESTAMP(6)

-- name: describe_server
SELECT VERSION(), DATABASE(), CURRENT_USER(), @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@binlog_format, @@read_only, NOW(6)

-- name: describe_server_without_binlog_format
SELECT VERSION(), DATABASE(), CURRENT_USER(), @@max_allowed_packet, @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, 'ROW', @@read_only, NOW(6)

-- name: get_identity
-- The identity of the server; in a transaction, because a proxy may send other reads to any of several servers.
SELECT @@hostname, @@port, @@server_id

-- name: get_uptime
SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime'

-- name: show_grants
SHOW GRANTS

-- name: create_database
CREATE DATABASE %(name)s CHARACTER SET utf8mb4

-- name: drop_database
DROP DATABASE IF EXISTS %(name)s
