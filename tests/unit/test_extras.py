"""What is optional is asked for before it is needed, with the name of its extra."""

import configparser
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from emsworker.core.codec import Decoder, encode_body
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, DecodeError, ExtraMissing
from emsworker.core.extras import MODULES, hint_if_missing, require

ROOT = Path(__file__).parents[2]
_WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({[name for all in MODULES.values() for name in all]!r}))\n"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for modules in MODULES.values():
        for name in modules:
            monkeypatch.setitem(sys.modules, name, None)


def test_extras_are_those_of_the_package() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    assert set(extras) - {"all", "bench", "dev", "docs", "sample", "sqlalchemy"} == set(MODULES)
    assert not {"redis", "watchdog"} & set(MODULES)
    core = re.findall(r"^([\w-]+)", config["options"]["install_requires"], re.MULTILINE)
    assert {"redis", "watchdog"} <= set(core)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_tasks_of_django_come_with_its_extra_on_every_python(python: str) -> None:
    surroundings = {"extra": "django", "python_version": python, "python_full_version": f"{python}.0"}
    wanted = map(Requirement, requires("emsworker") or ())
    names = {one.name for one in wanted if one.marker is not None and one.marker.evaluate(surroundings)}
    assert {"django", "django-tasks"} <= names


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("extra", MODULES)
def test_the_error_names_the_extra_in_one_line(extra: str) -> None:
    with pytest.raises(ExtraMissing, match=rf"^it needs the extra {extra}: .* pip install 'emsworker\[{extra}\]'$"):
        require(extra, "it")


def test_an_extra_that_is_installed_and_one_that_is_none_need_nothing() -> None:
    assert hint_if_missing("msgpack") is hint_if_missing("json") is hint_if_missing([None]) is None


@pytest.mark.usefixtures("bare")
def test_settings_that_need_an_extra_are_refused_before_the_first_message() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ={}, serializer="yaml", accept=("json", "msgpack"), compression="zstd")
    problems = {problem.name: problem.fix for problem in caught.value.problems}
    for name, extra in {"serializer": "yaml", "accept": "msgpack", "compression": "zstd"}.items():
        assert f"pip install 'emsworker[{extra}]'" in problems[name]


def test_a_body_that_needs_an_extra_names_it(request: pytest.FixtureRequest) -> None:
    raw, headers = encode_body([1], compression="zstd")
    request.getfixturevalue("bare")
    with pytest.raises(DecodeError, match=r"emsworker\[zstd\]"):
        Decoder().decode(raw, headers)
    for options in ("'yaml'", "'msgpack'", "'json', 'zstd'"):
        code = f"{_WITHOUT}from emsworker.core.codec import encode_body\nencode_body([1], {options})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert re.search(r"EncodeError: .*pip install 'emsworker\[\w+\]'$", done.stderr.strip()), done.stderr


@pytest.mark.parametrize(
    "made", ["observe.metrics import Metrics; Metrics()", "monitoring import StreamMetrics; StreamMetrics(None)"]
)
def test_metrics_ask_for_their_extra_when_they_are_made(made: str) -> None:
    code = f"{_WITHOUT}from emsworker.{made}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith("pip install 'emsworker[metrics]'"), done.stderr


@pytest.mark.parametrize(
    ("read", "extra"), [("read_arrow", "arrow"), ("read_pandas", "pandas"), ("scan_polars", "polars")]
)
def test_a_read_without_spark_asks_for_its_extra(read: str, extra: str) -> None:
    code = f"{_WITHOUT}import emsworker.arrow\nemsworker.arrow.{read}(subscribe='orders')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith(f"pip install 'emsworker[{extra}]'"), done.stderr


def test_a_job_of_the_pipeline_asks_for_spark() -> None:
    code = f"{_WITHOUT}from emsworker.spark.jobs.session import open_session\nwith open_session('x'): pass"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.strip().endswith("pip install 'emsworker[spark]'"), done.stderr
