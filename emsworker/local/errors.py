"""Errors of private servers."""


class ServerMissing(RuntimeError):
    """No server program is installed; the message names what to install."""


class StatementFailed(RuntimeError):
    """The server refused an SQL statement; the message begins with its error number."""


class ServerFailed(RuntimeError):
    """A server could not be started, reached or stopped; the message ends with the last lines of its log."""
