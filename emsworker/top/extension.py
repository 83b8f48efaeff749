"""The groups of a stream, live on a terminal."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "top",
    __package__,
    commands={
        "top": Command(
            "emsworker.top.commands:top",
            "Watch groups live: state, lag, rates, oldest, running, retries and dead letters, and the clients.",
        )
    },
)
