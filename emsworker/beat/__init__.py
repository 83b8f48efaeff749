"""The beat: background maintenance, run by one leader at a time, one service a module."""
