-- Notes that people leave on topics.

CREATE TABLE IF NOT EXISTS acme_note (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  topic_id INT UNSIGNED NOT NULL,
  text VARCHAR(200) CHARACTER SET utf8mb4 NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (id),
  KEY expires (expires_at)
) ENGINE=InnoDB;
