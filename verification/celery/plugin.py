"""Plugin of pytest for suites of other projects: private servers, and a named reason for whatever does not pass.

Each test process has a database and a Redis of its own. Celery's tests keep notes of what ran in a Redis whatever the
broker is. ``SUITE_BROKER`` is ``ems``, ``redis``, or ``results``: messages in Redis and results in EMS; ``exceptions.toml`` names the tests that do not pass with it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, SupportsIndex

import pytest

from tests.celery.brokers import Broker, ems, on_redis, open_redis
from tests.support.servers import IS_WORKER, TestServers, chosen_flavors, fresh_database

ON = os.environ.get("SUITE_BROKER", "ems")
_EXCEPTIONS = Path(__file__).with_name("exceptions.toml")
_servers = ExitStack()


class StoresLikeRedis(str):
    """Address of a result backend that has chords and keeps states, as Redis has.

    Tests that need such a backend ask for it by ``result_backend.startswith("redis")``, and skip all others. Those that
    really mean Redis are named in the file; while they run, the address tells the truth.
    """

    __slots__ = ()
    as_redis = True

    def startswith(
        self, prefix: str | tuple[str, ...], start: SupportsIndex | None = None, end: SupportsIndex | None = None, /
    ) -> bool:
        """Answer as the address of a Redis would, too."""
        return super().startswith(prefix, start, end) or (self.as_redis and "redis://".startswith(prefix))


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start the servers before the suite's conftest looks for their addresses."""
    options = early_config.known_args_namespace
    if options.collectonly or (getattr(options, "numprocesses", None) and not IS_WORKER):
        return
    servers = TestServers()
    _servers.callback(servers.close)
    try:
        broker = _start(servers)
    except BaseException:
        _servers.close()
        raise
    os.environ |= {"TEST_BROKER": broker.url, "TEST_BACKEND": broker.backend, "TEST_DEAD_BROKER": broker.dead}


def _start(servers: TestServers) -> Broker:
    notes = servers.redis()
    open_redis(notes)
    os.environ |= {"REDIS_HOST": "127.0.0.1", "REDIS_PORT": str(notes.port), "REDIS_6379_TCP": str(notes.port)}
    if ON == "redis":
        return on_redis(notes)
    ours = ems(_servers.enter_context(fresh_database(servers.database(chosen_flavors()[0]))))
    return ours if ON == "ems" else replace(on_redis(notes), name=ON, backend=ours.backend)


def pytest_unconfigure() -> None:
    """Stop the servers."""
    _servers.close()


def pytest_sessionstart() -> None:
    """Let tests run that are skipped unless results are kept as in Redis."""
    conftest = sys.modules.get("t.integration.conftest")
    if conftest is not None and ON != "redis":
        vars(conftest)["TEST_BACKEND"] = StoresLikeRedis(vars(conftest)["TEST_BACKEND"])


class Exceptions:
    """Tests that do not pass, each with its reason, by the patterns of a section of the file."""

    def __init__(self) -> None:
        found = tomllib.loads(_EXCEPTIONS.read_text(encoding="utf-8"))
        sections = ("everywhere", ON, f"celery-{version('celery').rpartition('.')[0]}")
        self._fails, self._passes, self._skips, self._hurries = (
            {test: why for section in sections for test, why in found[kind].get(section, {}).items()}
            for kind in ("fails", "passes", "skips", "hurries")
        )

    def failing(self, test: str) -> str | None:
        """The reason why a test fails."""
        return _reason(self._fails, test)

    def passing(self, test: str) -> str | None:
        """The reason why a test passes that the suite itself expects to fail."""
        return _reason(self._passes, test)

    def skipping(self, test: str) -> str | None:
        """The reason why a test does not run, or skips itself."""
        return _reason(self._skips, test)

    def hurrying(self, test: str) -> str | None:
        """The reason why a test fails on a busy machine."""
        return _reason(self._hurries, test)


def _reason(patterns: dict[str, str], test: str) -> str | None:
    return next((reason for pattern, reason in patterns.items() if fnmatchcase(test, pattern)), None)


_exceptions = Exceptions()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is known to fail: it must. The suite's own marks of such tests are dropped."""
    for item in items:
        reason = _exceptions.failing(_name(item.nodeid))
        if reason or _exceptions.passing(_name(item.nodeid)):
            item.own_markers = [one for one in item.own_markers if one.name != "xfail"]
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
        if _exceptions.hurrying(_name(item.nodeid)):
            _give_time(item.module)  # type: ignore[attr-defined]


def _give_time(module: Any) -> None:
    """Have each wait for a counter last as long as the suite's others; one that is there is found at once."""
    if not hasattr(wait := module.await_redis_count, "__wrapped__"):
        module.await_redis_count = wraps(wait)(
            lambda *args, **kwargs: wait(*args, **kwargs | {"timeout": module.TIMEOUT})
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let tests that are named as skipped see what the backend really is, and every test wait for results.

    A worker that a test runs in its own process leaves it forbidden to wait for results, as within a task. The suite's
    own processes meet that by the order of its files, whatever the broker; here tests are spread over processes.
    """
    StoresLikeRedis.as_redis = _exceptions.skipping(_name(item.nodeid)) is None
    if (state := sys.modules.get("celery._state")) is not None:
        state._set_task_join_will_block(False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Refuse a skip that is not named, and the end of one that is."""
    report = yield
    if report.when not in ("setup", "call") or hasattr(report, "wasxfail"):
        return report
    expected = _exceptions.skipping(_name(item.nodeid))
    if report.skipped and expected is None:
        report.outcome, report.longrepr = "failed", f"skipped, and not named in {_EXCEPTIONS.name}: {report.longrepr}"
    if report.passed and report.when == "call" and expected is not None:
        report.outcome, report.longrepr = "failed", f"named in {_EXCEPTIONS.name}, and not skipped: {expected}"
    return report


def _name(nodeid: str) -> str:
    """A test's name as in the file: without square brackets, which are patterns themselves."""
    file, _, test = nodeid.partition("::")
    return f"{file.rpartition('/')[2]}::{test}".replace("[", "(").replace("]", ")")
