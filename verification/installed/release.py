"""``./dev release``: the files of a release, and what is left to a person."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verification.installed import packages
from verification.installed.packages import ROOT, run
from verification.installed.user import install, make_environment

_NAME = "emsworker"
_SECTION = re.compile(r"^## (?P<version>\S+)(?: - (?P<date>\d{4}-\d{2}-\d{2}))?\n(?P<text>.*?)(?=^## |\Z)", re.M | re.S)


@dataclass(frozen=True)
class Checkout:
    """What decides whether a checkout can be released.

    Args:
        changes: what `git status` names, a line for each file.
        version: of setup.cfg.
        told: the version that the library says it has.
        changelog: the text of CHANGELOG.md.
        tags_elsewhere: git's tags that name other commits than this one.
    """

    changes: tuple[str, ...]
    version: str
    told: str
    changelog: str
    tags_elsewhere: frozenset[str]

    @classmethod
    def here(cls, root: Path = ROOT) -> Checkout:
        """Read the checkout in a folder."""
        changes = _git(root, "status", "--porcelain").splitlines()
        tags = {*_git(root, "tag").split()} - {*_git(root, "tag", "--points-at", "HEAD").split()}
        changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
        return cls(tuple(changes), _config(root)["metadata"]["version"], _told(root), changelog, frozenset(tags))

    @property
    def tag(self) -> str:
        """The tag of this version."""
        return f"v{self.version}"

    def refusals(self) -> list[str]:
        """Why this is no release: a line for each reason, none if it is one."""
        found = []
        if self.changes:
            found.append(f"the checkout has changes ({', '.join(self.changes[:3])}); commit or remove them")
        if self.version != self.told:
            found.append(f"setup.cfg has version {self.version}, emsworker/__init__.py {self.told}; set them equal")
        if not self._has_section():
            found.append(f"CHANGELOG.md has no text below '## {self.version} - YYYY-MM-DD'; write it")
        if self.tag in self.tags_elsewhere:
            found.append(f"the tag {self.tag} names another commit; set another version, or check that commit out")
        return found

    def _has_section(self) -> bool:
        return any(
            found["version"].strip("[]") == self.version and found["date"] and found["text"].strip()
            for found in _SECTION.finditer(self.changelog)
        )


def _config(root: Path) -> ConfigParser:
    config = ConfigParser()
    config.read(root / "setup.cfg")
    return config


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def _told(root: Path) -> str:
    """The version in the library's text: importing it could find another one that is installed."""
    for node in ast.parse((root / "emsworker" / "__init__.py").read_text(encoding="utf-8")).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__version__")], value=ast.Constant(value=str(text))):
                return text
    return "none"


def complete(folder: Path, python: Path, version: str) -> None:
    """Check the packages in a folder as an index does, and add their bill of materials and checksums.

    Args:
        folder: sdist and wheel, and nothing else.
        python: of an environment in which the wheel is installed, and what it needs.
        version: of the release.
    """
    made = sorted(folder.iterdir())
    run([sys.executable, "-m", "twine", "check", "--strict", *map(str, made)])
    bill = folder / f"{_NAME}-{version}.cdx.json"
    _write_bill(bill, python, version)
    sums = "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in (*made, bill))
    (folder / "SHA256SUMS").write_text(sums)


def _write_bill(bill: Path, python: Path, version: str) -> None:
    """Write what the environment holds as CycloneDX, with this package as its subject; the tool checks the form."""
    with tempfile.TemporaryDirectory() as name:
        subject = Path(name) / "pyproject.toml"
        # A list of JSON is one of TOML.
        wanted = json.dumps(_config(ROOT)["options"]["install_requires"].split())
        subject.write_text(
            f'[project]\nname = "{_NAME}"\nversion = "{version}"\nlicense = "Apache-2.0"\ndependencies = {wanted}\n'
        )
        options = ["--mc-type", "library", "--output-reproducible", "--pyproject", str(subject)]
        run(
            [sys.executable, "-m", "cyclonedx_py", "environment", *options, "--output-file", str(bill), str(python)],
            {"SOURCE_DATE_EPOCH": str(packages.committed_at())},
        )
    if missing := {"click", "kombu", "pymysql", "redis"} - _needed(json.loads(bill.read_text())):
        raise SystemExit(f"{bill.name} lacks {', '.join(sorted(missing))}; is the wheel installed in {python}?")


def _needed(bill: dict[str, Any]) -> set[str]:
    """The names of what the subject of a bill of materials needs itself."""
    names = {one["bom-ref"]: one["name"].lower() for one in bill["components"]}
    subject = bill["metadata"]["component"]["bom-ref"]
    return {names[ref] for one in bill["dependencies"] if one["ref"] == subject for ref in one.get("dependsOn", ())}


def release(*, tag: bool) -> None:
    """Make the files of a release in `dist/VERSION`, or end with the reasons why this checkout is none.

    Args:
        tag: also create the tag.
    """
    checkout = Checkout.here()
    if wrong := checkout.refusals():
        raise SystemExit("\n".join(f"no release: {one}" for one in wrong))
    target = ROOT / "dist" / checkout.version
    with tempfile.TemporaryDirectory(prefix="ems-release-") as name:
        folder = Path(name) / "release"
        packages.build_twice(Path(name) / "built", folder)
        python = make_environment(Path(name) / "env")
        install(python, str(next(folder.glob("*.whl"))))
        complete(folder, python, checkout.version)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
    print(f"{target.relative_to(ROOT)}, built twice with the same bytes:\n{(target / 'SHA256SUMS').read_text()}")
    command = ["git", "tag", "-a", checkout.tag, "-m", f"{_NAME} {checkout.version}"]
    if tag:
        subprocess.run(command, cwd=ROOT, check=True)
    print("Left to you:", *_left(checkout, "" if tag else " ".join((*command[:-1], f"'{command[-1]}'"))), sep="\n  ")


def _left(checkout: Checkout, tag_command: str) -> list[str]:
    folder = f"dist/{checkout.version}"
    return [
        "let .ci/run, ./dev chaos, ./dev mutants and ./dev soak HOURS=8 pass on this commit",
        *([tag_command] if tag_command else []),
        f"git push origin {checkout.tag}",
        f"twine upload {folder}/*.tar.gz {folder}/*.whl",
        f"publish {folder}/SHA256SUMS and {folder}/{_NAME}-{checkout.version}.cdx.json beside them",
    ]
