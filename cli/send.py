"""``ems send``."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click

from emsworker.console.completing import complete_tasks, complete_topics
from emsworker.console.dialogue import progress
from emsworker.console.options import (
    PARTITION,
    TIME,
    common_options,
    duration_option,
    read_headers,
    read_moment,
    read_time,
)
from emsworker.console.output import print_done
from emsworker.console.streams import open_main
from emsworker.core.counted import counted, plural
from emsworker.core.durations import format_duration

if TYPE_CHECKING:
    from datetime import datetime

    from emsworker.app import Ems
    from emsworker.core.model import Receipt

_CHUNK = 500


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("body")
@click.option("--key", help="Messages with the same key share a partition, and keep their order.")
@click.option("--partition", type=PARTITION, help="The partition, instead of a key.")
@click.option("--tag", help="One short word that groups can filter by.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher ones run first, if the topic has priorities.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@duration_option("--delay", help="It is not run before this time has passed")
@click.option("--eta", metavar="TIME", callback=read_time, help=f"It is not run before then: {TIME}.")
@click.option(
    "--expires",
    metavar="DURATION|TIME",
    callback=read_moment,
    help="It is no longer run after this time has passed, or after that time.",
)
@click.option("--uid", help="A UUID of your own as its id; a second message with it is not sent.")
@click.option("--dedup-key", help="It is not sent while an unfinished message of the topic has this key.")
@duration_option("--dedup-window", help="--dedup-key holds for this time at least; 5m")
@click.option(
    "--task",
    metavar="NAME",
    shell_complete=complete_tasks,
    help='Call this task: BODY is its arguments, [1, 2] or {"name": 1}.',
)
@click.option("--text", is_flag=True, help="BODY is text, not JSON.")
@click.option("--lines", is_flag=True, help="Each line of BODY (@FILE or -) is a message of its own.")
@common_options
def send(
    topic: str,
    body: str,
    headers: tuple[str, ...],
    expires: float | datetime | None,
    task: str | None,
    text: bool,
    lines: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Send a message, a task call, or many messages.

    Returns when BODY is committed to TOPIC.

    BODY is JSON, or @FILE to read it from a file, or - for standard input.

    \b
    ems send orders '{"number": 4711}' --key customer-17
    ems send default '[2, 3]' --task shop.add --delay 10m
    ems send orders @orders.jsonl --lines
    """  # noqa: D301 - click wants the character itself
    from emsworker.core.model import EXPIRES_HEADER, TASK_HEADER

    options = {name: value for name, value in given.items() if value is not None}
    _refuse_contradictions(body, task, text, lines, options)
    options["headers"] = _headers(headers)
    if task:
        options["headers"][TASK_HEADER] = task
    reader = _Reader(task is not None, text)
    content = None if lines else reader.read(_content(body), "BODY")
    app = open_main().app()
    if expires is not None:
        options["headers"][EXPIRES_HEADER] = app.server_time(expires).isoformat()
    if lines:
        _send_lines(app, topic, body, reader, options, as_json)
        return
    receipt = app.publisher.send(topic, content, **options)
    app.close()
    print_done(asdict(receipt), _sentence(receipt, options), as_json)


def _refuse_contradictions(body: str, task: str | None, text: bool, lines: bool, options: Mapping[str, Any]) -> None:
    if task == "":
        raise click.BadParameter("'' names no task; leave it out for a plain message.", param_hint="--task")
    if options.get("dedup_key") == "":
        raise click.BadParameter("'' is no key; leave it out to send without one.", param_hint="--dedup-key")
    if "delay" in options and "eta" in options:
        span = format_duration(options["delay"])
        raise click.UsageError(f"--delay {span} and --eta {options['eta'].isoformat()}: give only one of them.")
    if task and text:
        raise click.UsageError("--task needs its arguments as JSON, not --text.")
    if lines and body != "-" and not body.startswith("@"):
        raise click.UsageError("--lines needs @FILE or - (standard input) as BODY.")
    for name in ("uid", "dedup_key") if lines else ():
        if name in options:
            raise click.UsageError(f"--{name.replace('_', '-')} names one message, and --lines sends many.")
    if "dedup_window" in options and "dedup_key" not in options:
        raise click.UsageError("--dedup-window needs --dedup-key.")


def _sentence(receipt: Receipt, options: Mapping[str, Any]) -> str:
    if not receipt.created:
        return f"Not sent again: message {receipt.id} of topic {receipt.topic} is there already."
    if receipt.offset is None:
        return f"Sent {receipt.id} to {receipt.topic}; the beat moves it into the stream when it is due."
    return f"Sent {receipt.id} to {receipt.topic}/{receipt.partition}/{receipt.offset}."


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    from emsworker.core.options import RESERVED_HEADERS

    headers = read_headers(given)
    for name in headers:
        if name.startswith(RESERVED_HEADERS):
            fix = f"names must not begin with {', '.join(RESERVED_HEADERS)}"
            raise click.BadParameter(f"{name!r} is reserved: {fix}.", param_hint="--header")
    return headers


def _open(body: str) -> BinaryIO:
    if body == "-":
        return sys.stdin.buffer
    try:
        return Path(body[1:]).open("rb")
    except OSError as error:
        raise click.BadParameter(f"{body[1:]!r} cannot be read: {error.strerror}.", param_hint="BODY") from None


def _content(body: str) -> str:
    if body != "-" and not body.startswith("@"):
        return body
    with _open(body) as file:
        return _decode(file.read(), "BODY")


def _decode(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{what} is not UTF-8 text: {error}.") from None


def _refuse_number(text: str) -> NoReturn:
    raise ValueError(f"JSON has no number {text}")


def _finite(text: str) -> float:
    """Return a number; one beyond what a float can hold is refused."""
    number = float(text)
    return number if math.isfinite(number) else _refuse_number(text)


class _Reader:
    """Reads the body of the command line."""

    def __init__(self, is_call: bool, is_text: bool) -> None:
        self._is_call = is_call
        self._is_text = is_text

    def read(self, text: str, what: str) -> Any:
        """Return the body; ``what`` names it in a usage error."""
        if self._is_text:
            return text
        try:
            value = json.loads(text, parse_constant=_refuse_number, parse_float=_finite)
        except ValueError as error:
            raise click.UsageError(f"{what} is not JSON ({error}); --text sends it as text.") from None
        return self._call(value, what) if self._is_call else value

    def _call(self, value: Any, what: str) -> list[Any]:
        if isinstance(value, list):
            return [value, {}]
        if isinstance(value, dict):
            return [[], value]
        raise click.UsageError(f'{what} is not a list of arguments; write [1, 2], or {{"name": 1}} for names.')


def _send_lines(app: Ems, topic: str, body: str, reader: _Reader, options: dict[str, Any], as_json: bool) -> None:
    from emsworker.publish.outgoing import Outgoing

    sent = 0
    with _open(body) as file:
        length = Path(body[1:]).stat().st_size if body != "-" else None
        lines = _numbered(file)
        with progress(f"Sending to {topic}", length) as bar:
            while chunk := list(islice(lines, _CHUNK)):
                try:
                    bodies = [reader.read(_decode(line, f"Line {number}"), f"Line {number}") for number, line in chunk]
                except click.UsageError as error:
                    text = f"{error.message} {counted(sent, 'message')} of the lines before {plural(sent, 'was')} sent."
                    raise click.UsageError(text) from None
                outgoing = [Outgoing(topic, one, **options | {"headers": dict(options["headers"])}) for one in bodies]
                sent += len(app.publisher.publish(topic, outgoing, many=True))
                bar.update(sum(len(line) for _, line in chunk) if length is not None else len(chunk))
    app.close()
    print_done({"topic": topic, "sent": sent}, f"Sent {counted(sent, 'message')} to {topic}.", as_json)


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, 1):
        if stripped := line.strip(b"\r\n"):
            yield number, stripped
