-- Which messages a group wants. Neither server has an ADD COLUMN that both understand and that may be repeated.

SET @ems_alter = IF(EXISTS (SELECT 1 FROM information_schema.COLUMNS
  WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'ems_group' AND COLUMN_NAME = 'filter'),
  'DO 0', 'ALTER TABLE ems_group ADD COLUMN filter VARCHAR(4000) NOT NULL DEFAULT ''''');

PREPARE ems_alter FROM @ems_alter;

EXECUTE ems_alter;

DEALLOCATE PREPARE ems_alter;
