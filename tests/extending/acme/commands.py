"""``ems notes``."""

import click
from acme.extension import EXTENSION
from acme.notes import add, latest

from emsworker.extending.console import common_options, duration_option, open_stream, print_done, print_rows
from emsworker.extending.database import check_extension


def _database():
    database = open_stream().database()
    database.call(lambda session: check_extension(session, EXTENSION))
    return database


@click.group()
def notes():
    """Leave notes on topics, and list them."""


@notes.command("add")
@click.argument("topic")
@click.argument("text")
@duration_option("--keep", "keep_s", default="1d", help="The time after which it is deleted")
@common_options
def add_note(topic, text, keep_s, as_json):
    """Leave a note on a topic."""
    _database().call(lambda session: add(session, topic, text, keep_s))
    print_done({"topic": topic, "text": text}, f"Noted on {topic}.", as_json)


@notes.command("list")
@common_options
def list_notes(as_json):
    """List the latest notes."""
    print_rows(_database().call(latest), ["topic", "text"], as_json, "There are no notes.")
