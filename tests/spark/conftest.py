"""One Spark session for all tests. They run by ``./dev test-spark`` only: Spark is large, and its Java takes seconds."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.streams import Stream, app, new_app, stream

__all__ = ["app", "new_app", "stream"]

ROOT = Path(__file__).parents[2]
JAR = Path("/usr/share/java/mariadb-java-client.jar")
collect_ignore_glob = [] if os.environ.get("EMS_TEST_SPARK") else ["test_*.py"]


CLASSES = Path(sys.prefix) / "spark-classes.jsa"
"""Where ``./dev test-spark`` had Spark's classes laid out, so that Java starts in half the time (apps/classes.py)."""

JAVA = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC" + (
    f" -XX:SharedArchiveFile={CLASSES}" if CLASSES.exists() else ""
)

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA,
    "spark.executor.extraJavaOptions": JAVA,
    "spark.sql.session.timeZone": "UTC",
}
"""What makes Spark start quickly and stay small."""

CONF = tuple(word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}"))
"""The same for a command line."""


def spark_environment() -> dict[str, str]:
    """The environment of a driver: its Python workers find the package as an installation would."""
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }


@pytest.fixture(scope="session")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile file: the environment names it before Spark starts, each test writes it."""
    path = tmp_path_factory.mktemp("profiles") / "profiles.ini"
    os.environ["EMS_PROFILES"] = str(path)
    return path


@pytest.fixture(scope="session")
def spark_session(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One session for all tests: starting it takes longer than most of them."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,4]").appName("ems-tests")
    settings = SETTINGS | {
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    }
    if JAR.exists():
        settings["spark.jars"] = str(JAR)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def profile(profiles: Path, stream: Stream) -> None:
    """The profile ``test`` names this test's database."""
    profiles.write_text(f"[test]\nurl = {stream.url}\n", encoding="utf-8")


@pytest.fixture
def spark(spark_session: Any, profile: None) -> Any:
    """The session."""
    return spark_session


@pytest.fixture
def read(spark: Any) -> Callable[..., Any]:
    """A data frame of the test's database: ``read("orders", endingOffsets=...)``."""

    def load(topic: str = "t", schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("ems").option("profile", "test").option("subscribe", topic).options(**options)
        return (reader.schema(schema) if schema else reader).load()

    return load
