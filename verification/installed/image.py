"""The image's recipe, docs/docker/Dockerfile, followed without Docker: its steps run in a folder, its commands as its user.

An instruction that is not known here is refused, so that the recipe cannot say more than is tried.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emsworker.local import LocalDatabase
from emsworker.local.ports import free_port
from verification.installed.packages import ROOT, run

RECIPE = ROOT / "docs" / "docker" / "Dockerfile"
_READY_S, _COMMAND_S = 120.0, 60.0
_APP = """
from emsworker import Ems

app = Ems("shop")


@app.task(result=True)
def double(number):
    return 2 * number
"""
_SEND = "from app import app, double; print(app.result(double.delay(21)).get(timeout=60)); app.close()"


@dataclass
class Image:
    """What a recipe has made, below a folder that stands for the root of the file system.

    Args:
        root: the folder.
        context: the folder that a build is given.
        python: the interpreter that stands for the base image's.
    """

    root: Path
    context: Path
    python: Path
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin"})
    workdir: str = "/"
    user: str = "0:0"
    health: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def follow(self, recipe: str) -> None:
        """Do what a recipe says: each instruction is the method of its name."""
        for name, text in instructions(recipe):
            step = getattr(self, f"_do_{name.lower()}", None)
            if step is None:
                raise SystemExit(f"{RECIPE.name}: nothing here can do {name} {text}")
            step(text)

    def _do_from(self, text: str) -> None:
        """The Python of this machine stands for the image's."""

    def _do_arg(self, text: str) -> None:
        name, _, value = text.partition("=")
        self.arguments[name] = value

    def _do_env(self, text: str) -> None:
        pairs = (one.partition("=") for one in shlex.split(text))
        self.environment |= {name: self._filled(value) for name, _, value in pairs}

    def _do_workdir(self, text: str) -> None:
        self.workdir = text
        self.inside(text).mkdir(parents=True, exist_ok=True)

    def _do_copy(self, text: str) -> None:
        if not text.startswith("--from="):  # of another stage, which is in the same folder here
            source, target = self._filled(text).split()
            shutil.copytree(self.context / source, self.inside(target), dirs_exist_ok=True)

    def _do_run(self, text: str) -> None:
        """Run a step with its absolute paths below the folder."""
        placed = re.sub(r"(?<![\w.])(?=/(?:opt|wheels)\b)", str(self.root), self._filled(text))
        tools = self.root / "tools"
        tools.mkdir(exist_ok=True)
        for name, command in {"python": str(self.python), "pip": f"{sys.executable} -m pip"}.items():
            (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (tools / name).chmod(0o755)
        path = os.pathsep.join((str(tools), os.environ["PATH"]))
        run(["bash", "-euc", placed], {"PATH": path, "PIP_DISABLE_PIP_VERSION_CHECK": "1"})

    def _do_user(self, text: str) -> None:
        self.user = text

    def _do_healthcheck(self, text: str) -> None:
        self.health = tuple(json.loads(text.partition(" CMD ")[2]))

    def _do_cmd(self, text: str) -> None:
        self.command = tuple(json.loads(text))

    def inside(self, path: str) -> Path:
        """The place of an absolute path of the image; of a relative one, below its working directory."""
        return self.root / self.workdir.lstrip("/") / path if not path.startswith("/") else self.root / path.lstrip("/")

    def _filled(self, text: str) -> str:
        values = self.arguments | self.environment
        return re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], text)

    def start(self, command: tuple[str, ...], url: str) -> subprocess.Popen[str]:
        """Start a command as the image's user, with nothing but the image's environment and an address."""
        program = next(
            found for one in self.environment["PATH"].split(":") if (found := self.inside(one) / command[0]).exists()
        )
        return subprocess.Popen(
            [str(program), *command[1:]], cwd=self.inside(self.workdir), env=self._own_environment() | {"EMS_URL": url},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **_as_user(self.user),
        )  # fmt: skip

    def _own_environment(self) -> dict[str, str]:
        path = ":".join(
            str(self.inside(one)) if one.startswith("/opt") else one for one in self.environment["PATH"].split(":")
        )
        return self.environment | {"PATH": path}

    def output(self, command: tuple[str, ...], url: str, code: int | None = 0) -> str:
        """Run a command to its end, and return what it has printed."""
        process = self.start(command, url)
        said, _ = process.communicate(timeout=_COMMAND_S)
        if code is not None and process.returncode != code:
            raise AssertionError(f"{shlex.join(command)} ended with {process.returncode}: {said}")
        return said


def _as_user(user: str) -> dict[str, Any]:
    """Arguments of a process that runs as the image's user; only root can become another one."""
    if os.getuid() != 0:
        return {}
    number, group = map(int, user.split(":"))
    return {"user": number, "group": group, "extra_groups": []}


def _python_for(user: str) -> Path:
    """An interpreter that a user can run: root's own may lie in a folder that nobody else can enter."""
    for path in (Path(sys.executable).resolve(), Path("/usr/local/bin/python3"), Path("/usr/bin/python3")):
        with suppress(OSError):
            supported = "import sys, venv; sys.exit(sys.version_info < (3, 11))"
            if subprocess.run([str(path), "-c", supported], cwd="/", check=False, **_as_user(user)).returncode == 0:
                return path
    raise SystemExit(f"no Python from 3.11 on that user {user} can run; install python3, or run this without root")


def instructions(recipe: str) -> list[tuple[str, str]]:
    """The instructions of a recipe, each with its text on one line."""
    lines = "\n".join(line for line in recipe.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", lines)
    return [(name, text.strip()) for name, _, text in (line.partition(" ") for line in joined.splitlines() if line)]


def try_recipe(folder: Path, wheel: Path) -> None:
    """Make an image of a wheel, run its worker as its user, ask for its health, send a message, and stop it.

    Args:
        folder: for everything; it does not exist yet.
        wheel: of this package.

    Raises:
        AssertionError: something is not as the recipe promises.
    """
    recipe = RECIPE.read_text(encoding="utf-8")
    (user,) = [text for name, text in instructions(recipe) if name == "USER"]
    python = _python_for(user)
    context = folder / "context"
    (context / "app").mkdir(parents=True)
    (context / "app" / "app.py").write_text(_APP)
    wanted = f"emsworker[metrics,web] @ {wheel.as_uri()}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(python)]
    run([*pip, "wheel", "--wheel-dir", str(context / "wheels"), wanted])
    image = Image(folder / "root", context, python)
    image.root.mkdir()
    image.follow(recipe)
    assert user.partition(":")[0] not in ("0", "root"), user
    image.environment["EMS_HTTP"] = f"127.0.0.1:{free_port()}"  # others use this machine's port 9000
    database = LocalDatabase(folder / "database")
    database.start(_READY_S)
    try:
        image.output(("ems", "migrate"), database.url)
        _serve(image, database.url)
    finally:
        database.stop()


def _serve(image: Image, url: str) -> None:
    worker = image.start(image.command, url)
    try:
        deadline = time.monotonic() + _READY_S
        while (said := image.output(image.health, url, code=None).strip()) != "ok":
            assert time.monotonic() < deadline and worker.poll() is None, f"the worker is not well: {said}"
            time.sleep(0.2)
        assert image.output(("python", "-c", _SEND), url).strip() == "42"
    finally:
        worker.send_signal(signal.SIGTERM)
        printed, _ = worker.communicate(timeout=_COMMAND_S)
    assert worker.returncode == 0, printed
    image.output(image.health, url, code=1)
