"""What Spark reads in a second, beside raw PyMySQL and Spark's own JDBC source; and what its reading costs workers."""
