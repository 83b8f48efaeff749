"""The source and the sink by a real server of Spark Connect, on the cluster: the client has no Java."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from emsworker.admin import Admin
from emsworker.local.ports import free_port
from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.spark.test_kills import kill_all
from tests.support.streams import Stream, wait_until
from verification.spark.cluster import Cluster

_PATIENCE_S = 300.0
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(cluster: Cluster, folder: Path) -> Iterator[str]:
    """A server whose session runs on the cluster; yields its address."""
    import pyspark

    port = free_port()
    submit = [str(Path(pyspark.__path__[0]) / "bin" / "spark-submit"), "--master", cluster.url, *CONF]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = folder / "connect.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*submit, *conf, "--class", _SERVER, "spark-internal"],
            cwd=ROOT, env={**os.environ, **spark_environment()}, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip

    def listens() -> bool:
        assert process.poll() is None, log.read_text()[-3000:]
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    try:
        wait_until(listens, _PATIENCE_S, "a server of Spark Connect")
        yield f"sc://127.0.0.1:{port}"
    finally:
        kill_all(process)


@pytest.mark.timeout(900)
def test_a_client_of_spark_connect_reads_and_writes_exactly_once(
    stream: Stream, profile: None, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("in", "out", "each"):
        stream.topic(name, partitions=2)
    with connect_server(cluster, tmp_path) as address:
        done = subprocess.run(
            [sys.executable, "-m", "verification.spark.apps.connected", address, str(tmp_path)],
            cwd=ROOT, env={**os.environ, **spark_environment(), "JAVA_HOME": str(tmp_path / "none")},
            capture_output=True, text=True, timeout=_PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:] + (tmp_path / "connect.log").read_text()[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["client"] == "pyspark.sql.connect.session"
    assert found["in"] == found["out"] == found["each"] == list(range(200))
    holds = {one.name: sum(one.lags) for one in Admin(stream.app()).readers.holds("in")}
    assert holds == {"connected": 0}, "a query holds by its name there, too"
