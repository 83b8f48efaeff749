"""Every snippet of the README and of the documentation is run, so that none of them rots."""

import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from emsworker.local import LocalStack
from tests.docs.snippets import ROOT, Reader, blocks, needs_commands, needs_django, needs_spark, pages, runs
from tests.support.recycling import renew_own
from tests.support.servers import TestServers, chosen_flavors

_PAGES = [page for page in pages() if runs(page) and not needs_spark(page) and not needs_django(page)]
_CONSOLE = re.compile(
    r"\$ (pip wheel |pip install (\.$|'\.\[|dist/)|git clone |cd |\./dev |sudo systemctl |docker (build|run --rm|compose up) ?|echo DB_PASSWORD=|sudo chown 10001 |python3? -m venv |export |MAIN=|spark-submit |venv-pack )"
)


def _environment(folder: Path, local: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith("EMS_") or name == "EMS_MYSQL_ROOT"
    }
    paths = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    changes = {"PATH": paths, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1", "EMS_LOCAL_DIR": str(local)}
    return kept | changes


def _starts_it(page: Path) -> bool:
    return any("ems local start" in block.text for block in blocks(page) if block.language == "sh")


def _needs_redis(page: Path) -> bool:
    return any("redis" in block.text for block in blocks(page) if block.language == "python")


@pytest.fixture
def local(page: Path, servers: TestServers, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalStack]:
    """A local stream as `ems local start` leaves it, on servers of the tests; one flavor is enough here.

    No address is told to anybody: a page that needs one must say where it comes from. What starts a stream by itself
    finds an empty folder.
    """
    folder = tmp_path / "local"
    folder.mkdir()
    stack = LocalStack(folder)
    if _starts_it(page):
        yield stack
        stack.stop()
        return
    server = servers.database(chosen_flavors()[0])
    (folder / "database").symlink_to(server.folder)
    if _needs_redis(page):
        request.getfixturevalue("redis_url")
        (folder / "redis").symlink_to(servers.redis().folder)
    renew_own(server)
    yield LocalStack(folder)


@pytest.fixture
def reader(local: LocalStack, tmp_path: Path) -> Reader:
    """A reader with a stream of his own, in a folder with a blank in its name."""
    folder = tmp_path / "a reader"
    folder.mkdir()
    return Reader(folder, _environment(folder, local.folder), lambda: local.url)


@pytest.mark.parametrize("page", _PAGES, ids=[str(page.relative_to(ROOT)) for page in _PAGES])
def test_every_snippet_of_the_page_runs(page: Path, reader: Reader) -> None:
    if needs_commands(page) and (find_spec("emsworker.cli.main") is None or shutil.which("bash") is None):
        pytest.skip("the ems command is not part of this installation")
    reader.follow(page)


def test_the_quickstart_and_the_how_tos_are_among_them() -> None:
    names = {page.name for page in _PAGES}
    assert {"README.md", "quickstart.md", "tasks.md", "transactions.md", "retries.md"} <= names


@pytest.mark.parametrize("page", pages(), ids=[str(page.relative_to(ROOT)) for page in pages()])
def test_what_is_only_shown_is_an_installation_or_a_command_of_dev(page: Path) -> None:
    for block in blocks(page):
        if block.language == "console":
            for line in block.text.replace("\\\n", " ").splitlines():
                if line.startswith("$ ems "):
                    understand(shlex.split(line.partition(" < ")[0])[2:])
                else:
                    assert _CONSOLE.match(line), f"{page.name} shows {line!r}, which no test runs"


def test_commands_in_the_text_have_the_options_that_they_need() -> None:
    """`ems grants worker` without its --user sends a reader to an error; a bare `ems grants` is only a name."""
    inline = re.compile(r"(?<!`)`ems ([a-z][^`\n]*)`(?!`)")
    wrong = [
        f"{page.name}: ems {text}"
        for page in pages()
        for text in inline.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        if "..." not in text and _misses_an_option(shlex.split(text))
    ]
    assert wrong == []


def _misses_an_option(words: list[str]) -> bool:
    from emsworker.cli.main import ems

    command: click.Command = ems
    while isinstance(command, click.Group) and words and words[0] in command.list_commands(click.Context(command)):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    needed = [one for one in command.params if isinstance(one, click.Option) and one.required and not one.envvar]
    return bool(words) and not all({*one.opts} & {word.partition("=")[0] for word in words} for one in needed)


def understand(words: list[str]) -> None:
    """Whether `ems` takes a command that is only shown, because it takes Spark or a cluster: by name and options."""
    from emsworker.cli.main import ems

    command: click.Command = ems
    context: click.Context | None = None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, parent=context, info_name=words[0])
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, words = found, words[1:]
    with contextlib.suppress(click.exceptions.Exit):  # --help has been printed
        command.make_context(command.name, list(words), parent=context)
