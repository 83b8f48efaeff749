"""Settings of servers that administrators may have chosen, each alone."""
