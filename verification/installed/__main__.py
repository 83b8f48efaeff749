"""``python -m verification.installed``: builds the package, compares it with git, installs it and uses it as its users do.

``python -m verification.installed suite FOLDER`` prepares a run of the tests against the installed wheel instead: FOLDER/env
is an environment with the wheel and with the other packages of this one, FOLDER/tree holds all but the library.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verification.installed import packages
from verification.installed.user import install, make_environment, try_everything

_began = time.monotonic()


def _say(text: str) -> None:
    print(f"{time.monotonic() - _began:5.0f} s  {text}", flush=True)


def _build_all(folder: Path) -> dict[str, Path]:
    """The wheel of the sources and that of the sdist; ends the program if they are not what git holds."""
    files = packages.tracked()
    source = packages.copy(files, folder / "source")
    sdist = packages.build("sdist", source, folder / "sdist")
    wheels = {
        "wheel": packages.build("wheel", source, folder / "wheel"),
        "wheel-of-sdist": packages.build("wheel", sdist, folder / "wheel-of-sdist"),
    }
    wrong = [f"git does not track {name}; run: git add {name}" for name in packages.forgotten()]
    wrong += packages.differences("the sdist", files, packages.held_by_sdist(sdist))
    for name, wheel in wheels.items():
        wrong += packages.differences(f"the {name}", packages.library(files), packages.held_by_wheel(wheel))
    if wrong:
        raise SystemExit("\n".join(wrong))
    return wheels


def _use(folder: Path, wheel: Path) -> None:
    python = make_environment(folder / "env")
    install(python, str(wheel))
    _say(f"{folder.name}: installed")
    try_everything(python, folder)
    _say(f"{folder.name}: README, quickstart and commands do what they say")


def check() -> None:
    """Build, compare, install, use."""
    with tempfile.TemporaryDirectory(prefix="ems-installed-") as name:
        wheels = _build_all(Path(name) / "built")
        _say("sdist and wheels hold what git holds")
        with ThreadPoolExecutor() as pool:
            used = [pool.submit(_use, Path(name) / kind, wheel) for kind, wheel in wheels.items()]
        for one in used:
            one.result()


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


if __name__ == "__main__":
    if sys.argv[1:2] == ["suite"]:
        prepare_suite(Path(sys.argv[2]))
    else:
        check()
