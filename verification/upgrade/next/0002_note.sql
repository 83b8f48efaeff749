-- What a version 1.1 could bring: a column and a key of tables that hold rows, and a table with rows for what is there.
-- oldest program: 1

CREATE TABLE IF NOT EXISTS ems_note (
  topic_id INT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  size INT UNSIGNED NOT NULL,
  PRIMARY KEY (topic_id, uid)
) ENGINE=InnoDB;

ALTER TABLE ems_message ADD COLUMN note VARBINARY(16) NULL, %(instantly)s;

UPDATE ems_message SET note = LEFT(uid, 4) WHERE uid IS NOT NULL AND note IS NULL AND %(range_of_ems_message)s;

-- A range that ran twice would meet its own rows, and be refused.
INSERT INTO ems_note (topic_id, uid, size)
SELECT topic_id, uid, LENGTH(body) FROM ems_message WHERE kind = 'message' AND %(range_of_ems_message)s;

ALTER TABLE ems_retry ADD KEY attempts (attempt), %(in_place)s;
