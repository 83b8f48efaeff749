"""The Django project of Celery's own documentation, unmodified but for its two addresses, on the installed wheel."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.celery.brokers import Broker
from tests.celery.installed import environment
from tests.support.waiting import until
from verification.celery.sources import CELERY, installed, unpacked

_CHANGED = {"CELERY_BROKER_URL": "url", "CELERY_RESULT_BACKEND": "backend"}


class Site:
    """The project in a folder of its own."""

    def __init__(self, python: Path, folder: Path, broker: Broker) -> None:
        self.python, self.folder = python, folder / "django"
        shutil.copytree(unpacked(installed(CELERY)) / "examples" / "django", self.folder)
        settings = self.folder / "proj" / "settings.py"
        text = settings.read_text()
        for name, address in _CHANGED.items():
            text, changed = re.subn(rf"^{name} = .*$", f"{name} = {getattr(broker, address)!r}", text, flags=re.M)
            assert changed == 1, name
        settings.write_text(text)
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith(("EMS_", "PYTHON"))}

    def start(self, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
        """Start a program of the project."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(self.python), *arguments], cwd=self.folder, env=self._environ, stdout=output, stderr=output
            )

    def shell(self, text: str) -> str:
        """Run a text in ``manage.py shell``; returns what it printed."""
        command = [str(self.python), "manage.py", "shell", "-c", text]
        done = subprocess.run(command, cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel."""
    return environment(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def site(python: Path, broker: Broker, tmp_path: Path) -> Iterator[Site]:
    """The project, migrated, with a worker."""
    site, log = Site(python, tmp_path, broker), tmp_path / "log"
    assert site.start("manage.py", "migrate", log=log).wait(120) == 0, log.read_text()
    worker = site.start("-m", "celery", "-A", "proj", "worker", "-l", "INFO", "-c", "2", log=log)

    def ready() -> bool:
        assert worker.poll() is None, log.read_text()
        return " ready." in log.read_text()

    try:
        until(ready, 60, "the worker is ready")
        yield site
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, log.read_text()
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.slow
def test_the_project_of_the_documentation_runs_by_its_addresses_alone(site: Site) -> None:
    where = site.shell("import emsworker; print(emsworker.__file__)")
    assert str(site.python.parents[1]) in where
    calls = "from demoapp.tasks import *; from demoapp.models import Widget; from celery import chord, group\n"
    assert site.shell(f"{calls}print(add.delay(2, 3).get(timeout=30))") == "5"
    assert site.shell(f"{calls}print(chord([add.s(n, n) for n in range(10)])(xsum.s()).get(timeout=60))") == "90"
    renamed = (
        "from django.db import transaction\n"
        "with transaction.atomic():\n"
        "    widget = Widget.objects.create(name='a')\n"
        "    rename_widget.delay_on_commit(widget.pk, 'b')\n"
        "import time\n"
        "until = time.monotonic() + 30\n"
        "while Widget.objects.get(pk=widget.pk).name != 'b' and time.monotonic() < until: time.sleep(0.05)\n"
        "print(Widget.objects.get(pk=widget.pk).name, count_widgets.delay().get(timeout=30))"
    )
    assert site.shell(calls + renamed) == "b 1"
