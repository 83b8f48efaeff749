"""What Spark says when something fails, in one line: real errors of a real session."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emsworker.core.errors import ConfigError
from emsworker.spark.jobs.session import SparkFailed, not_started, told
from tests.spark.conftest import CONF, ROOT, SETTINGS, spark_environment
from tests.spark.test_report_commands import ems
from tests.support.commands import environment
from tests.support.streams import Stream, wait_until
from tests.support.waiting import until


def line_of(action: Callable[[], Any]) -> str:
    """What is told of the error that it raises: one line, without Java's packages."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with pytest.raises((PySparkException, Py4JError)) as caught:
        action()
    line = str(told(caught.value))
    assert "\n" not in line and "\tat " not in line and "org.apache" not in line, line
    return line


def test_an_error_of_the_source_is_told_in_its_own_words(read: Any) -> None:
    assert line_of(lambda: read("nowhere").count()) == (
        "there is no topic 'nowhere' to read; `ems topics list` shows what there is"
    )
    line = line_of(lambda: read("nowhere", startingOffsets="soon", colour="red").count())
    assert "option colour = 'red': a batch read has no such option" in line


def test_sparks_own_exception_holds_little_beside_the_line(
    read: Any, spark: Any, stream: Stream, tmp_path: Path
) -> None:
    """What somebody sees in a notebook: Spark's words around it, no frames of ours, no cause of the cause."""
    stream.topic("t")

    def write(topic: str) -> Any:
        frame = spark.createDataFrame([(b"x",)], "value binary").write.format("ems").mode("append")
        return frame.option("profile", "test").option("topic", topic).save()

    def follow(**options: str) -> Any:
        frame = spark.readStream.format("ems").option("profile", "test").options(**options).load().writeStream
        place = str(tmp_path / options["subscribe"])
        query = frame.format("noop").option("checkpointLocation", place).trigger(availableNow=True).start()
        return query.awaitTermination(120)

    for action, line in (
        (lambda: read("nowhere").count(), "UnknownTopic: there is no topic 'nowhere' to read; `ems topics list`"),
        (lambda: read("t", colour="red").count(), "ConfigError: option colour = 'red': a batch read has no such"),
        (lambda: read("t", dataset="mails"), "ConfigError: option dataset = 'mails': must be one of messages"),
        (lambda: write("nowhere"), "UnknownTopic: there is no topic 'nowhere' and auto_create is off; create it"),
        (lambda: follow(subscribe="nowhere"), "UnknownTopic: there is no topic 'nowhere' to read; `ems topics list`"),
        (
            lambda: follow(subscribe="t", endingOffsets="latest"),
            "ConfigError: option endingoffsets = 'latest': a stream",
        ),
    ):
        with pytest.raises(Exception) as caught:
            action()
        said = [one for one in str(caught.value).partition("=== Streaming Query ===")[0].splitlines() if one.strip()]
        assert len(said) <= 9, caught.value
        assert f"emsworker.core.errors.{line}" in said[-2 if "SQLSTATE" in said[-1] else -1], caught.value
        assert str(caught.value).count("Traceback") == 1, caught.value


def test_a_refused_login_names_the_role_that_reads(stream: Stream, profiles: Path, read: Any) -> None:
    profiles.write_text(f"[test]\nurl = {re.sub(':[^:@]+@', ':wrong@', stream.url)}\n")
    with pytest.raises(Exception, match="LoginRefused") as caught:
        read("t").count()
    assert "`ems grants reader` prints" in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 6


def test_an_error_in_python_on_an_executor(spark_session: Any) -> None:
    from pyspark.sql.functions import udf

    broken = udf(lambda number: 1 // number)
    line = line_of(lambda: spark_session.range(1).select(broken("id")).collect())
    assert line.startswith("Spark failed: ZeroDivisionError: integer division or modulo by zero"), line


def test_folders_that_cannot_be_used(spark_session: Any) -> None:
    line = line_of(lambda: spark_session.read.parquet("/nowhere/at-all"))
    assert "Path does not exist: file:/nowhere/at-all" in line
    assert line.endswith("see whether it exists, under that name, on every node")
    line = line_of(lambda: spark_session.range(3).coalesce(1).write.parquet("/proc/none/at-all"))
    assert "Mkdirs failed to create file:/proc/none/at-all" in line
    assert line.endswith("name a folder that Spark's processes may write to")
    line = line_of(lambda: spark_session.range(3).write.parquet("hdfs://127.0.0.1:1/at-all"))
    assert "Connection refused" in line and line.endswith("is reached from here under that name")


def test_a_setting_that_spark_refuses_is_wrong_usage(spark_session: Any) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        spark_session.newSession().conf.set("spark.sql.shuffle.partitions", "many")
    error = told(caught.value)
    assert isinstance(error, ConfigError)
    assert str(error.problems[0]).startswith("--conf = spark.sql.shuffle.partitions=many: ")


@pytest.mark.timeout(400)
def test_what_spark_raises_it_does_not_print_as_well() -> None:
    program = (
        "from emsworker.spark.jobs.session import open_session\n"
        "with open_session('x', 'local[1]') as spark:\n"
        "    spark.range(1).where('no_such = 1')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT, env=environment(spark_environment()), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "no_such" in done.stderr.splitlines()[-1] and "SQLQueryContextLogger" not in done.stderr, done.stderr


def test_no_session_for_want_of_java() -> None:
    error = not_started(RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited"), "", "local[*]", {})
    assert isinstance(error, SparkFailed)
    assert str(error) == "Spark does not start: Java 17 or later must be on the PATH, or named by JAVA_HOME"


def test_wrong_settings_of_java_and_wrong_masters_end_with_2(stream: Stream) -> None:
    """Real processes; Java gives up before Spark has begun."""
    stream.group(stream.topic("orders"), "sellers")
    for arguments, told_as in (
        (["--master", "nonsense"], "--master = nonsense: must be local[*], spark://host:port, yarn or "),
        (["--conf", "spark.driver.memory=lots"], "--conf = spark.driver.memory=lots: Java does not take it ("),
        (
            ["--conf", "spark.driver.memory"],
            "Error: Invalid value for --conf: 'spark.driver.memory' must be NAME=VALUE.",
        ),
    ):
        done = ems("topics", *arguments, url=stream.url, timeout_s=240, **spark_environment())
        assert done.code == 2, done
        assert told_as in done.errors[-1], done
        assert "Exception" not in done.err and "\tat " not in done.err


def test_without_java_it_is_one_line(stream: Stream, tmp_path: Path) -> None:
    stream.group(stream.topic("orders"), "sellers")
    environ = spark_environment() | {"JAVA_HOME": str(tmp_path)}
    done = ems("topics", "--spark", url=stream.url, timeout_s=240, **environ)
    assert done.code == 1
    assert done.errors == ["Error: Spark does not start: Java 17 or later must be on the PATH, or named by JAVA_HOME"]


@pytest.mark.timeout(400)
def test_spark_submit_runs_a_job(stream: Stream) -> None:
    """With the master and the settings that it was given, and Java's log left where it sends it."""
    import pyspark

    from emsworker.spark import jobs

    stream.group(stream.topic("orders"), "sellers")
    stream.app().send("orders", 1)
    settings = SETTINGS | {"spark.app.name": "submitted"}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    submit, main = Path(pyspark.__path__[0]) / "bin" / "spark-submit", Path(jobs.__path__[0]) / "__main__.py"
    done = subprocess.run(
        [str(submit), "--master", "local[1]", *conf, str(main), "topics", "--json"],
        cwd=ROOT, env=environment({"EMS_URL": stream.url, **spark_environment()}),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout)
    assert (summary["job"], summary["messages"], summary["topics"]) == ("topics", 1, 1)


@pytest.mark.timeout(600)
def test_a_job_whose_java_is_killed_says_so(stream: Stream, tmp_path: Path) -> None:
    stream.group(stream.topic("orders"), "sellers")
    stream.app().send("orders", 1)
    environ = environment({"EMS_URL": stream.url, **spark_environment()})
    rules = ["--lag", "5", "--every", "1s", "--checkpoint", str(tmp_path / "c"), "--events", str(tmp_path / "e")]
    process = subprocess.Popen(
        [sys.executable, "-m", "emsworker", "pipeline", "alerts", *rules, *CONF],
        cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: (tmp_path / "c" / "commits").is_dir(), 240, "a first sample")
        os.kill(java_of(process.pid), signal.SIGKILL)
        out, err = process.communicate(timeout=240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 1, out + err
    assert err.splitlines()[-1].startswith("Error: the Java process of Spark is gone: "), err
    assert "Traceback" not in err


_KILLED_IN_A_CALL = """
import os, signal, sys, threading
from py4j.clientserver import ClientServerConnection
from py4j.protocol import Py4JError
from emsworker.spark.jobs.session import SparkFailed, open_session
from tests.spark.test_failing import freeze, java_of

connected, frozen, over, cut_off = threading.Event(), threading.Event(), threading.Event(), []
send = ClientServerConnection.send_command

def send_and_fail_late(connection, command):
    try:
        return send(connection, command)
    except Exception:
        over.wait() if threading.current_thread() is other else None
        raise

def call():
    "As the thread of foreachBatch does, which may notice the death after everybody else."
    sleep = spark.sparkContext._jvm.java.lang.Thread.sleep
    connected.set()
    frozen.wait()
    try:
        sleep(60000)
    except (Py4JError, ConnectionError) as error:  # the latter if Java was dead before the call had left
        cut_off.append(error)

ClientServerConnection.send_command = send_and_fail_late
other = threading.Thread(target=call)
try:
    with open_session("killed in a call") as spark:
        java = java_of(os.getpid())
        other.start()
        connected.wait()
        freeze(java)  # it leaves the call unread, so that its death resets the connection
        frozen.set()
        threading.Timer(1, os.kill, (java, signal.SIGKILL)).start()
        spark.range(1).count()
except SparkFailed as error:
    failed = str(error)
over.set()
other.join()
assert cut_off, "it has noticed the death, too"
sys.exit(f"told: {failed}")
"""


@pytest.mark.timeout(200)
def test_java_killed_amid_a_call_is_told_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_IN_A_CALL],
        cwd=ROOT, env=environment(spark_environment()), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert re.fullmatch("told: the Java process of Spark is gone: .*\n", done.stderr), done.stderr


def freeze(java: int) -> None:
    """Stop all threads of a Java process, and wait until the last one stands still."""
    os.kill(java, signal.SIGSTOP)
    tasks = Path(f"/proc/{java}/task")
    until(
        lambda: all((task / "stat").read_text().rsplit(")", 1)[1].split()[0] == "T" for task in tasks.iterdir()),
        30, "all its threads stand still",
    )  # fmt: skip


def java_of(driver: int) -> int:
    """The Java that a driver started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == driver and b"SparkSubmit" in command:
            return int(entry.name)
    raise AssertionError(f"process {driver} has no Java")
