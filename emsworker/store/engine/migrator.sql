-- name: list_steps
SELECT step, place, seen_rows, done_at IS NOT NULL FROM ems_migration_step WHERE extension = %(extension)s AND version = %(version)s

-- name: begin_step
INSERT INTO ems_migration_step (extension, version, step, begun_at) VALUES (%(extension)s, %(version)s, %(step)s, NOW(6)) ON DUPLICATE KEY UPDATE begun_at = begun_at

-- name: move_step
UPDATE ems_migration_step SET place = %(place)s, seen_rows = seen_rows + %(rows)s WHERE extension = %(extension)s AND version = %(version)s AND step = %(step)s

-- name: end_step
UPDATE ems_migration_step SET done_at = NOW(6) WHERE extension = %(extension)s AND version = %(version)s AND step = %(step)s
