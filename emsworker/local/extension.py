"""Private servers for development."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "local",
    __package__,
    commands={"local": Command("emsworker.local.commands:local", "Run a private MySQL and Redis for development.")},
    default_stream="emsworker.local.stack:running_stream",
)
