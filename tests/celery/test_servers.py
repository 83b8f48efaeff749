"""What stands in the URL of a project: several servers, TLS, and a Redis that wakes its workers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from emsworker.local import LocalDatabase
from tests.celery.brokers import Broker, ems
from tests.celery.project import Project, publish
from tests.security.certificates import Authority
from tests.support.prepared import PreparedDatabase
from tests.support.replication import replicating
from tests.support.servers import TestServers
from tests.support.waiting import until

_IN_HAND = 2 * 2 * 4  # two workers, two processes each, and the project's prefetch multiplier


@pytest.mark.slow
def test_a_project_goes_on_at_the_replica_when_the_primary_dies(server: LocalDatabase, tmp_path: Path) -> None:
    with replicating(server.flavor, tmp_path / "servers") as pair:
        (tmp_path / "project").mkdir()
        with Project(ems(pair.url), tmp_path / "project", {"lease_s": 10}) as project:
            project.workers(2)
            publish(project, 40, seconds=0.3)
            sender = project.program(
                "for number in range(40, 200):\n"
                "    work.delay(number, 0.05)\n"  # an error ends it: a project need not catch any
                "    print(number, flush=True)\n"
            )
            project.wait_ended(10)
            pair.fail_over()
            out, err = sender.communicate(timeout=120)
            assert sender.returncode == 0, err
            assert len(out.split()) == 160
            project.wait_ended(200)
            assert project.run("print(square.delay(7).get(timeout=60))") == "49\n"
            again = [number for number, count in project.count("ended").items() if count > 1]
            assert len(again) <= _IN_HAND, "only what a worker had in hand may run twice"


@pytest.fixture
def safe(server: LocalDatabase, servers: TestServers, tmp_path: Path) -> Iterator[tuple[LocalDatabase, Path]]:
    """A server that refuses connections without TLS, and the certificate of who has signed its own."""
    authority = Authority.make(tmp_path, "ca")
    certificate, key = authority.sign("server", "IP:127.0.0.1")
    files = {"ssl-ca": str(authority.certificate), "ssl-cert": str(certificate), "ssl-key": str(key)}
    own = PreparedDatabase(tmp_path / "safe", server.flavor, options=files | {"require-secure-transport": "ON"})
    try:
        own.start(120)
        yield own, authority.certificate
    finally:
        own.kill()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
def test_workers_come_by_tls_to_the_server_that_answers_and_are_woken_by_redis(
    safe: tuple[LocalDatabase, Path], redis_url: str, tmp_path: Path
) -> None:
    server, authority = safe
    port = f":{server.url.rpartition(':')[2].partition('/')[0]}/"
    one = ems(f"{server.url}?ssl_ca={authority}")
    url = f"{one.url.replace(port, f':1,127.0.0.1{port}')}&redis_url={quote(redis_url, safe='')}"
    with Project(Broker("ems", url, url, url), tmp_path) as project, redis.Redis.from_url(redis_url) as looker:
        project.worker("-c", "1").wait_ready()
        assert project.run("print(square.delay(7).get(timeout=60))") == "49\n"
        channels = looker.pubsub_channels()
        listeners = [count for _, count in looker.pubsub_numsub(*channels)]
        assert listeners, "the worker listens"
        with looker.pubsub() as heard:
            heard.subscribe(*channels)
            project.run("work.delay(0)")
            project.wait_ended(1)
            until(lambda: (heard.get_message(timeout=1) or {}).get("type") == "message", 30, "a task is told of")
