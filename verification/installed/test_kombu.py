"""kombu and the installed wheel: the transport is found by its URL alone, and Python's start costs next to nothing."""

import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

from verification.installed import packages
from verification.installed.test_packages import IS_WHEEL
from verification.installed.user import install, make_environment

pytestmark = pytest.mark.skipif(IS_WHEEL, reason="there are no sources")

_FIND = "from kombu import Connection; print(Connection('ems+{}://db/shop').transport.driver_type)"
_HOOKS = "import sys; print([one.__name__ for one in sys.meta_path if one.__module__ == 'emsworker_kombu'])"
_PAIRS = 41


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the sources."""
    folder = tmp_path_factory.mktemp("built")
    return packages.build("wheel", packages.copy(packages.tracked(), folder / "source"), folder / "wheel")


@pytest.fixture
def site(tmp_path: Path, wheel: Path) -> Path:
    """The folder of packages of an environment with the wheel, and with the packages of this one."""
    install(make_environment(tmp_path / "env"), "--no-deps", str(wheel))
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (site / "packages-of-tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return site


def _run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    python = site.parents[2] / "bin" / "python"
    return subprocess.run([str(python), *arguments], cwd=site, capture_output=True, text=True, timeout=60, check=False)


def _printed(site: Path, *arguments: str) -> str:
    done = _run(site, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.parametrize("isolated", [(), ("-I",)], ids=["", "isolated"])
def test_the_wheel_brings_the_transport(site: Path, scheme: str, isolated: tuple[str, ...]) -> None:
    assert _printed(site, *isolated, "-c", _FIND.format(scheme)) == "ems"


def test_the_finder_waits_for_kombu_and_leaves(site: Path) -> None:
    assert _printed(site, "-c", _HOOKS) == "['_Finder']"
    assert _printed(site, "-c", f"import kombu.transport; {_HOOKS}") == "[]"
    assert _printed(site, "-S", "-c", _HOOKS) == "[]"


@pytest.mark.parametrize("gone", ["emsworker", "emsworker_kombu.py"])
def test_a_part_that_is_missing_stops_no_program(site: Path, gone: str) -> None:
    """Neither the start of Python nor kombu's table; nothing is printed."""
    (site / gone).rename(site / f"{gone}.gone")
    assert _printed(site, "-c", "from kombu import transport; print('memory' in transport.TRANSPORT_ALIASES)") == "True"


def test_pytest_tells_of_no_module_that_it_cannot_rewrite(site: Path, tmp_path: Path) -> None:
    """It rewrites the modules of plugins, which EMS is; this one is imported before."""
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
    assert "1 passed" in _printed(site, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path))


def test_uninstalled_nothing_is_left(tmp_path: Path, wheel: Path) -> None:
    python = make_environment(tmp_path / "env")
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    before = sorted(site.rglob("*"))
    install(python, "--no-deps", str(wheel))
    assert (site / "emsworker_kombu.pth").exists()
    _printed(site, "-c", "")  # bytecode of the hook
    packages.run([sys.executable, "-m", "pip", "--quiet", "--python", str(python), "uninstall", "-y", "emsworker"])
    assert sorted(site.rglob("*")) == before


@pytest.mark.alone
def test_a_start_of_python_takes_no_millisecond_longer(site: Path) -> None:
    hook = site / "emsworker_kombu.pth"
    _printed(site, "-c", "pass")

    def seconds() -> float:
        began = time.perf_counter()
        _run(site, "-c", "pass")
        return time.perf_counter() - began

    differences = []
    for _ in range(_PAIRS):
        with_it = seconds()
        hook.rename(hook.with_suffix(".off"))
        differences.append(with_it - seconds())
        hook.with_suffix(".off").rename(hook)
    assert statistics.median(differences) < 0.001
