"""``ems cancel``."""

from __future__ import annotations

import click

from emsworker.console.completing import complete_topics
from emsworker.console.options import common_options
from emsworker.console.output import print_record
from emsworker.console.streams import open_stream


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("id_", metavar="ID")
@common_options
def cancel(topic: str, id_: str, as_json: bool) -> None:
    """Cancel a message in every group, also while it runs.

    A delayed message is deleted; one in the stream is read by nobody any more. `running` means that a worker has it: it
    is interrupted within about a second, and its result is `cancelled` when nothing of it runs any more. A message that
    every group has finished is left as it is, and the exit code is 1. `ems trace` and `ems audit` tell who cancelled
    it: the system's user and host.
    """
    from emsworker.admin.audit import CANCEL, cancel_target, count_cancelled
    from emsworker.core.errors import UnknownMessage

    with open_stream().changing(CANCEL, cancel_target(topic, id_), count_cancelled) as admin:
        found = admin.cancel(topic, id_)
    if found.value == "finished":
        raise UnknownMessage(f"every group of {topic!r} has finished message {id_}; nothing was changed")
    print_record({"topic": topic, "id": id_, "was": found.value}, as_json)
