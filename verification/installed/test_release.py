"""What makes a release: the same bytes each time, and no checkout that is not ready."""

import dataclasses
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from verification.installed.image import instructions
from verification.installed.packages import ROOT, pack_again, unequal
from verification.installed.release import Checkout
from verification.installed.test_packages import IS_WHEEL

_READY = Checkout(
    (), "1.0.0", "1.0.0", "# Changelog\n\n## 1.0.0 - 2026-12-01\n\n- It is there.\n", frozenset({"v0.9.0"})
)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"changes": (" M dev",)}, "the checkout has changes ( M dev)"),
        ({"told": "1.0.1"}, "setup.cfg has version 1.0.0, emsworker/__init__.py 1.0.1"),
        ({"changelog": "## Unreleased\n\n- more\n"}, "no text below '## 1.0.0 - YYYY-MM-DD'"),
        ({"changelog": "## 1.0.0 - 2026-12-01\n\n## 0.9.0 - 2026-11-01\n\n- less\n"}, "no text below"),
        ({"changelog": "## 1.0.0\n\n- undated\n"}, "no text below"),
        ({"tags_elsewhere": frozenset({"v1.0.0"})}, "the tag v1.0.0 names another commit"),
    ],
)
def test_a_checkout_that_is_not_ready_is_refused_with_the_reason(changed: dict[str, object], words: str) -> None:
    assert _READY.refusals() == []
    (reason,) = dataclasses.replace(_READY, **changed).refusals()
    assert words in reason


def _sdist(path: Path, names: list[str], mtime: int, owner: str, mode: int) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname, member.mode = len(name), mtime, owner, mode
            archive.addfile(member, io.BytesIO(name.encode()))
    return path


def test_an_sdist_has_nothing_of_the_machine_that_built_it(tmp_path: Path) -> None:
    one = _sdist(tmp_path / "one.tar.gz", ["x-1/a", "x-1/b"], 1_700_000_000, "ann", 0o644)
    other = _sdist(tmp_path / "other.tar.gz", ["x-1/b", "x-1/a"], 1_800_000_000, "bob", 0o600)
    assert unequal("sdist", one, other) == ["two builds of the sdist differ in metadata, times or modes"]
    for path in (one, other):
        pack_again(path, 1_234_567_890)
    assert unequal("sdist", one, other) == []
    with tarfile.open(one) as archive:
        assert [(found.name, found.mtime, found.mode, found.uname) for found in archive] == [
            ("x-1/a", 1_234_567_890, 0o644, ""),
            ("x-1/b", 1_234_567_890, 0o644, ""),
        ]
    pack_again(_sdist(tmp_path / "third.tar.gz", ["x-1/a", "x-1/c"], 1, "ann", 0o644), 1_234_567_890)
    assert unequal("sdist", one, tmp_path / "third.tar.gz") == ["two builds of the sdist differ in b, c"]


def test_a_recipe_is_read_with_its_comments_and_continued_lines() -> None:
    recipe = '# one\nFROM a\n\nRUN x \\\n    && y\n# two\nCMD ["z"]\n'
    assert instructions(recipe) == [("FROM", "a"), ("RUN", "x && y"), ("CMD", '["z"]')]


def _git(folder: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@x",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@x",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, env=os.environ | identity
    )
    return done.stdout


def _release(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    identity = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@x"}
    return subprocess.run(
        [sys.executable, "-m", "verification.installed", "release", *options],
        cwd=folder, env=environ | identity, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(IS_WHEEL, reason="there are no sources")
def test_a_release_is_made_from_a_clean_checkout_and_tagged_on_request(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    _git(ROOT, "clone", "--quiet", str(ROOT), str(clone))
    version = Checkout.here(clone).version
    early = _release(clone)
    assert early.returncode == 1 and "no release: CHANGELOG.md has no text" in early.stderr
    assert not (clone / "dist").exists()
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {version} - 2026-12-01", 1))
    assert "the checkout has changes" in _release(clone).stderr
    _git(clone, "commit", "--quiet", "-am", "Release")
    done = _release(clone, "--tag")
    assert done.returncode == 0, done.stdout + done.stderr
    assert _git(clone, "tag", "--points-at", "HEAD").split() == [f"v{version}"]
    assert "twine upload" in done.stdout and "git tag" not in done.stdout
    folder = clone / "dist" / version
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums.keys() == {path.name for path in folder.iterdir()} - {"SHA256SUMS"} and len(sums) == 3
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == found for name, found in sums.items())
    bill = json.loads((folder / f"emsworker-{version}.cdx.json").read_text())
    assert bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "emsworker"
    assert Checkout.here(clone).refusals() == [], "whoever has the tag can build it again"
