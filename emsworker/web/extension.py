"""The dashboard."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "web",
    __package__,
    commands={"web": Command("emsworker.web.commands:web", "Run the dashboard, a web site.")},
)
