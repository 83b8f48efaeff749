"""``ems send``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from emsworker.core.counted import counted, plural

from .common import common_options, open_stream, progress, read_headers
from .output import print_done

if TYPE_CHECKING:
    from emsworker.app import Ems

_CHUNK = 500


@click.command()
@click.argument("topic")
@click.argument("body")
@click.option("--key", help="Messages with the same key share a partition, and keep their order.")
@click.option("--tag", help="One short word that groups can filter by.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher ones run first, if the topic has priorities.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--task", metavar="NAME", help='Call this task: BODY is its arguments, [1, 2] or {"name": 1}.')
@click.option("--text", is_flag=True, help="BODY is text, not JSON.")
@click.option("--lines", is_flag=True, help="Each line of BODY (@FILE or -) is a message of its own.")
@common_options
def send(
    topic: str,
    body: str,
    key: str | None,
    tag: str | None,
    priority: int | None,
    headers: tuple[str, ...],
    task: str | None,
    text: bool,
    lines: bool,
    as_json: bool,
) -> None:
    """Send a message, a task call, or many messages.

    Returns when BODY is committed to TOPIC.

    BODY is JSON, or @FILE to read it from a file, or - for standard input.

    \b
    ems send orders '{"number": 4711}' --key customer-17
    ems send default '[2, 3]' --task shop.add
    ems send orders @orders.jsonl --lines
    """  # noqa: D301 - click wants the character itself
    from emsworker.core.model import TASK_HEADER

    if task and text:
        raise click.UsageError("--task needs its arguments as JSON, not --text.")
    if lines and body != "-" and not body.startswith("@"):
        raise click.UsageError("--lines needs @FILE or - (standard input) as BODY.")
    options: dict[str, Any] = {"key": key, "tag": tag, "priority": priority, "headers": _headers(headers)}
    if task:
        options["headers"][TASK_HEADER] = task
    reader = _Reader(task is not None, text)
    if lines:
        _send_lines(open_stream().app(), topic, body, reader, options, as_json)
        return
    content = reader.read(_content(body), "BODY")
    app = open_stream().app()
    receipt = app.send_call(topic, content, **options)
    app.close()
    sentence = f"Sent {receipt.id} to {receipt.topic}/{receipt.partition}/{receipt.offset}."
    print_done(asdict(receipt), sentence, as_json)


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
            value = json.loads(text)
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
                sent += len(app.send_many(topic, outgoing))
                bar.update(sum(len(line) for _, line in chunk) if length is not None else len(chunk))
    app.close()
    print_done({"topic": topic, "sent": sent}, f"Sent {counted(sent, 'message')} to {topic}.", as_json)


def _numbered(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, 1):
        if stripped := line.strip(b"\r\n"):
            yield number, stripped
