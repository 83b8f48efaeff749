-- name: list_key
-- The columns of the primary key, in order.
SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = %(table)s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX

-- name: find_end
-- The last row of a batch, or none if fewer rows are left.
SELECT %(columns)s FROM %(table)s FORCE INDEX (PRIMARY) WHERE %(rows)s ORDER BY %(columns)s LIMIT 1 OFFSET %(skipped)s

-- name: count_rest
-- Rows of the last batch, of those that find_end found too few.
SELECT COUNT(*) FROM %(table)s FORCE INDEX (PRIMARY) WHERE %(rows)s

-- name: is_any
1 = 1

-- name: is_after_last
%(column)s > %(value)s

-- name: is_after
-- Row comparisons would not be found by the key.
(%(column)s > %(value)s OR (%(column)s = %(value)s AND %(rest)s))

-- name: is_within_last
%(column)s <= %(value)s

-- name: is_within
(%(column)s < %(value)s OR (%(column)s = %(value)s AND %(rest)s))

-- name: is_between
%(after)s AND %(within)s
