-- name: estimate_rows
-- The server's estimate, which is up to date, unlike that of information_schema on MySQL.
EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM %(table)s
