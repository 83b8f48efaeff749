"""Errors of private servers."""

from emsworker.extending.errors import EmsError


class ServerMissing(EmsError):
    """No server program is installed; the message names what to install."""


class StatementFailed(EmsError):
    """The server refused an SQL statement; the message begins with its error number."""


class ServerFailed(EmsError):
    """A server could not be started, reached or stopped; the message ends with the last lines of its log."""
