-- name: count_rows
-- If there are as many rows as offsets, there is no hole.
SELECT COUNT(*) FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s
