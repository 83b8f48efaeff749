"""The dashboard."""

from emsworker.core.extension import Command, Extension

EXTENSION = Extension(
    "web",
    __package__,
    commands={"web": Command("emsworker.web.commands:web", "Run the dashboard, a web site.")},
)
