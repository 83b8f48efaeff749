"""``python -m verification.installed``: builds the package, compares it with git, installs it and uses it as its users do.

``python -m verification.installed suite FOLDER`` prepares a run of the tests against the installed wheel instead: FOLDER/env
is an environment with the wheel and with the other packages of this one, FOLDER/tree holds all but the library.
``python -m verification.installed release [--tag]`` makes the files of a release.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verification.installed import image, packages, release
from verification.installed.release import Checkout
from verification.installed.user import install, make_environment, try_everything

_began = time.monotonic()


def _say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.0f} s  {text}", flush=True)


def check() -> None:
    """Build twice and compare; install, make what belongs to a release, and use it; follow the image's recipe."""
    with tempfile.TemporaryDirectory(prefix="ems-installed-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the user of the image reads it
        packages.build_twice(folder / "built", folder / "dist")
        _say("two builds of sdist and wheel are the same, and hold what git holds")
        (wheel,) = (folder / "dist").glob("*.whl")
        with ThreadPoolExecutor() as pool:
            for one in [pool.submit(_use, folder, wheel), pool.submit(_image, folder, wheel)]:
                one.result()


def _use(folder: Path, wheel: Path) -> None:
    python = make_environment(folder / "env")
    install(python, str(wheel))
    release.complete(wheel.parent, python, Checkout.here().version)
    _say("installed; metadata, bill of materials and checksums are made")
    try_everything(python, folder)
    _say("README, quickstart and commands do what they say")


def _image(folder: Path, wheel: Path) -> None:
    image.try_recipe(folder / "image", wheel)
    _say("the image's steps make a worker that an unknown user can run, and that tells its health")


def prepare_suite(folder: Path) -> None:
    """Make the environment and the tree for a run of the tests against the installed wheel."""
    files = packages.tracked()
    wheel = packages.build("wheel", packages.copy(files, folder / "source"), folder / "wheel")
    python = make_environment(folder / "env")
    install(python, "--no-deps", str(wheel))
    (site,) = (folder / "env" / "lib").glob("python*/site-packages")
    # Its packages, but not its links to the checkout: those are made by .pth files, which only a main folder's are.
    (site / "packages-of-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    _link_commands(python)
    packages.copy(
        {name: text for name, text in files.items() if not name.startswith((*packages.LIBRARY,))}, folder / "tree"
    )


def _link_commands(python: Path) -> None:
    """Let the commands of this environment's other packages (gunicorn, flask ...) run there."""
    for script in Path(sysconfig.get_path("scripts")).iterdir():
        copy = python.parent / script.name
        if copy.exists() or script.is_symlink() or not script.is_file():
            continue
        first, _, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            copy.write_bytes(b"#!%s\n%s" % (bytes(python), rest))
            copy.chmod(0o755)
        elif first.startswith(b"\x7fELF"):  # a program that needs no Python, such as hadolint
            copy.symlink_to(script)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["suite", folder]:
            prepare_suite(Path(folder))
        case ["release", *options] if options in ([], ["--tag"]):
            release.release(tag=bool(options))
        case []:
            check()
        case _:
            raise SystemExit("usage: ./dev release [--tag]")
