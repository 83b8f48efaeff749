-- name: show_standing
-- What a server is. Each server has some of these: replicas and demoted primaries are read-only, as are servers that
-- were started on read-only files; members of a replication group know its name, nodes of a Galera cluster wsrep_on,
-- and one whose replication is switched off still knows the addresses of the others. Some let nobody stop their clock
-- (secure_timestamp).
SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', 'innodb_read_only', 'offline_mode',
  'group_replication_group_name', 'group_replication_single_primary_mode', 'wsrep_on', 'wsrep_cluster_address',
  'secure_timestamp')

-- name: get_membership
-- What the group thinks of this server, how many of its members this server cannot reach, and which are primaries.
SELECT @@GLOBAL.server_uuid,
  COALESCE(MAX(IF(MEMBER_ID = @@GLOBAL.server_uuid, CONCAT(MEMBER_STATE, ' ', MEMBER_ROLE), NULL)), 'OFFLINE'),
  CAST(COALESCE(SUM(MEMBER_STATE = 'UNREACHABLE'), 0) AS SIGNED), COUNT(*),
  COALESCE(GROUP_CONCAT(IF(MEMBER_STATE = 'ONLINE' AND MEMBER_ROLE = 'PRIMARY', MEMBER_ID, NULL)), '')
FROM performance_schema.replication_group_members

-- name: show_node
-- What a Galera cluster thinks of this node, and the number of the view that both belong to.
SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_status', 'wsrep_local_state_comment', 'wsrep_ready',
  'wsrep_cluster_conf_id')

-- name: grant_membership
-- Every role needs it on the members of a replication group: which member is the primary.
GRANT SELECT ON performance_schema.replication_group_members TO %(user)s
