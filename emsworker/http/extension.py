"""The declaration."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "http",
    __package__,
    commands={"http": Command("emsworker.http.commands:http", "Serve messages by HTTP, for programs in any language.")},
)
