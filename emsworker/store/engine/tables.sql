-- name: list_columns
SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND LEFT(TABLE_NAME, 4) = 'ems_'

-- name: ask_column
SELECT %(column)s FROM %(table)s LIMIT 0
