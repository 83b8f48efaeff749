"""What Spark reads in a second: the Python source beside raw PyMySQL and Spark's own JDBC source, on the same rows."""
