"""Finds the code blocks of the documentation and runs a page's blocks in order, in one folder, as a reader would.

The language and the title of a block say what becomes of it:

- ``python`` runs; with a title ending in ``.py`` it is written to that file and imported, and the page says by which
  command it is run; with one that begins with ``before`` it shows another library, which is not installed, with
  ``elsewhere`` it needs what tests do not have, and is only compiled;
- ``sh`` runs, and what it exports is there for the blocks below; with a title it is a terminal of its own, whose last
  command stays open until the page ends: a worker, or a web server if it names a port, for which a free one is taken
  throughout the page;
- ``sql`` is what ``ems local sql`` runs;
- ``text`` titled ``prints`` must be what the block before it printed;
- ``console``, ``dockerfile``, ``ini``, ``json``, ``yaml`` and the languages of others (``go``, ``java``, ``js``, ``php``) are shown only, and
  what is not listed here is refused.
"""

import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from emsworker.local.ports import free_port
from tests.support.servers import connect

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHOWN = {"console", "dockerfile", "ini", "json", "mermaid", "yaml", "go", "java", "js", "php"}
_PORT = re.compile(r"(?:--port[ =]|-p |--bind [\w.]*:|-b [\w.]*:|runserver )(\d{4,5})\b")
_BLOCK_S, _STOP_S, _DRAIN_S = 180.0, 60.0, 120.0  # for a busy machine


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    language: str
    title: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    found = [Block(language, title, code) for language, title, code in _FENCE.findall(text)]
    assert len(found) * 2 == len(re.findall(r"^\s*```", text, re.MULTILINE)), (
        f"{page.name} has a block without a language"
    )
    return found


def pages() -> list[Path]:
    """Every page of the documentation that has a block; ``tests/extending`` compares and runs that of extensions."""
    every = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if blocks(page) and page.name != "extensions.md"]


def runs(page: Path) -> bool:
    """Whether a page has a block that is run."""
    return any(block.language not in _SHOWN | {"text"} for block in blocks(page))


def _is_compiled(block: Block) -> bool:
    return block.title.startswith(("before", "elsewhere"))


def needs_spark(page: Path) -> bool:
    """Whether a page uses Spark, which has tests of its own."""
    return any(
        "pyspark" in block.text for block in blocks(page) if block.language == "python" and not _is_compiled(block)
    )


def needs_django(page: Path) -> bool:
    """Whether a page makes a project of Django, which has a test of its own."""
    return any("django-admin" in block.text for block in blocks(page) if block.language == "sh")


def needs_commands(page: Path) -> bool:
    """Whether a page uses the ``ems`` command."""
    return any(block.language == "sh" for block in blocks(page))


def with_free_ports(found: list[Block]) -> list[Block]:
    """The blocks of a page, whose web servers listen on ports that are free."""
    for port in {
        port for block in found if block.language == "sh" and block.title for port in _PORT.findall(block.text)
    }:
        free = str(free_port())
        found = [replace(block, text=re.sub(rf"\b{port}\b", free, block.text)) for block in found]
    return found


@dataclass
class Reader:
    """Somebody who follows a page.

    Args:
        folder: where files are written and commands run.
        environment: of the first terminal and of those that are opened later; `python` and `ems` are on its PATH.
        url_of: the stream's address, asked for when it is needed.
    """

    folder: Path
    environment: dict[str, str]
    url_of: Callable[[], str]
    printed: str = ""
    _exported: dict[str, str] = field(default_factory=dict)
    _terminals: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ports: dict[int, int] = field(default_factory=dict)  # of web servers, by process

    def follow(self, page: Path) -> None:
        """Do what the page says, see that all messages were handled, and close the terminals."""
        try:
            for block in with_free_ports(blocks(page)):
                self._do(block)
            if self._terminals:
                self._wait("handled", self._unhandled)
                for terminal in self._terminals:
                    assert terminal.poll() is None, self._output("a terminal ended by itself")
        finally:
            self._close()
        for terminal in self._terminals:
            stopped = (0, 130, -signal.SIGINT) if terminal.pid in self._ports else (0,)
            if "exec celery " in str(terminal.args):
                stopped = (1,)  # Celery's code for a warm shutdown by Ctrl-C
            assert terminal.returncode in stopped, self._output(f"a terminal ended with {terminal.returncode}")

    def _do(self, block: Block) -> None:
        if block.language == "python" and _is_compiled(block):
            compile(block.text, block.title, "exec")
        elif block.language == "python" and block.title.endswith(".py"):
            (self.folder / block.title).write_text(block.text, encoding="utf-8")
            self._run(["python", "-c", f"import runpy; runpy.run_path({block.title!r}, run_name='page')"])
        elif block.language == "python":
            self._run(["python", "-c", block.text])
        elif block.language == "sh" and block.title:
            self._open_terminal(block.text)
        elif block.language == "sh":
            self._wait("ready", self._not_ready)  # as a reader would, at the other terminal
            exported = self.folder / "exported"
            self._run(["bash", "-euc", f"{block.text}\nenv -0 >{shlex.quote(str(exported))}"])
            self._exported = dict(line.split("=", 1) for line in exported.read_text().split("\0") if line)
        elif block.language == "sql":
            self._run(["ems", "local", "sql"], block.text)
        elif block.language == "text" and block.title == "prints":
            assert self.printed.strip() == block.text.strip(), self.printed
        elif block.language not in _SHOWN | {"text"}:
            raise AssertionError(f"nobody runs {block.language} blocks")

    def _run(self, command: list[str], stdin: str = "") -> None:
        done = subprocess.run(
            [self._program(command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment | self._exported,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=_BLOCK_S,
            check=False,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}{done.stderr}"
        self.printed = done.stdout

    def _open_terminal(self, text: str) -> None:
        with (self.folder / f"terminal-{len(self._terminals)}.log").open("wb") as log:
            *before, last = text.replace("\\\n", " ").strip().splitlines()
            script = "\n".join([*before, f"exec {last}"])  # its process is the terminal's own
            self._terminals.append(
                subprocess.Popen(
                    [self._program("bash"), "-euc", script],
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    # As in a terminal: what is started in the background has inherited that Ctrl-C is ignored.
                    preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
                )
            )
        if port := _PORT.search(last):
            self._ports[self._terminals[-1].pid] = int(port[1])

    def _program(self, name: str) -> str:
        program = shutil.which(name, path=self.environment["PATH"])
        assert program is not None, f"{name} is not installed"
        return program

    def _wait(self, what: str, look: Callable[[], Iterable[object]]) -> None:
        until = time.monotonic() + _DRAIN_S
        while left := list(look()):
            assert time.monotonic() < until, self._output(f"not {what}: {left}")
            assert all(terminal.poll() is None for terminal in self._terminals), self._output("a terminal has ended")
            time.sleep(0.1)

    def _not_ready(self) -> Iterator[object]:
        workers = [terminal for terminal in self._terminals if terminal.pid not in self._ports]
        yield from (f"a server on port {port}" for port in self._ports.values() if not _answers(port))
        if not workers:
            return
        with connect(self.url_of()) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT client_id FROM ems_client WHERE expires_at > NOW(6)")
            pids = {client_id.split("-")[1] for (client_id,) in cursor.fetchall()}
            supervisors = {_parent(pid) for pid in pids} | set(map(int, pids))  # a Celery worker is its own client
            yield from (terminal.args for terminal in workers if terminal.pid not in supervisors)

    def _unhandled(self) -> Iterator[object]:
        """What a group of a terminal has yet to handle of all that was sent."""
        yield from self._not_ready()
        with connect(self.url_of()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT g.name, c.`partition`, c.next_offset FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id "
                "WHERE EXISTS (SELECT 1 FROM ems_message m WHERE m.topic_id = g.topic_id "
                "AND m.`partition` = c.`partition` AND m.`offset` >= c.next_offset)"
            )
            yield from cursor.fetchall()
            cursor.execute(
                "SELECT g.name, c.lo, c.hi FROM ems_claim c JOIN ems_group g ON g.id = c.group_id "
                "WHERE c.state <> 'done'"
            )
            yield from cursor.fetchall()
            cursor.execute(
                "SELECT g.name, r.`offset`, r.attempt FROM ems_retry r JOIN ems_group g ON g.id = r.group_id"
            )
            yield from cursor.fetchall()

    def _output(self, what: str) -> str:
        logs = [log.read_text(errors="replace")[-3000:] for log in sorted(self.folder.glob("terminal-*.log"))]
        return "\n".join([what, *logs])

    def _close(self) -> None:
        for terminal in self._terminals:
            if terminal.poll() is None:
                terminal.send_signal(signal.SIGINT)
        for terminal in self._terminals:
            try:
                terminal.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                terminal.kill()
                terminal.wait()
                raise


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _parent(pid: str) -> int:
    """The parent of a process, 0 if it has ended."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"^PPid:\s+(\d+)$", status.read_text(), re.MULTILINE) if status.exists() else None
    return int(found[1]) if found else 0
