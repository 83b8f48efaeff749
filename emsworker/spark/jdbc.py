"""Reading by Spark's own JDBC source: faster, because rows do not pass through Python, but it needs a driver."""

from __future__ import annotations

from typing import Any

import emsworker.arrow.planning as planning
from emsworker.arrow import scan
from emsworker.arrow.columns import LOG_APPEND_TIME
from emsworker.arrow.options import read_options
from emsworker.arrow.planning import Slice
from emsworker.arrow.profile import open_stream
from emsworker.arrow.servers import only_part
from emsworker.extending.database import Session
from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.settings import MAIN, DatabaseUrl

_DRIVER = "org.mariadb.jdbc.Driver"
_UTC = {"UTC", "Etc/UTC", "Z", "GMT"}


def read_jdbc(spark: Any, *, driver: str = _DRIVER, fetchsize: int = 10_000, **given: str) -> Any:
    """Read a batch with Spark's JDBC source; return a data frame with the columns of ``format("ems")``.

    The offsets are planned in this call by the rules of ``format("ems")``: up to the high watermark, cut by offsets and
    bytes. Unlike ``format("ems")``, it cannot detect that retention overtakes it, and a query reads only the columns
    that it uses.

    Args:
        spark: the session; the driver's jar is among its ``spark.jars``.
        driver: the driver's class. MariaDB Connector/J works with both servers.
        fetchsize: rows that the driver fetches at once.
        given: the options of a batch read, for example ``subscribe="orders"``.

    Raises:
        ConfigError: names every wrong option.
        UnknownTopic, DataLoss, OutOfRange: as in ``format("ems")``.
    """
    options = read_options(given, streaming=False)
    refused = {
        "dataset": options.dataset != "messages",
        "includeHeaders": options.include_headers,
        "includeMeta": options.include_meta,
        "includeCancelled": options.include_cancelled,
        "pushFilters": options.push_filters,
    }
    if any(refused.values()):
        fix = 'JDBC reads the plain columns of messages; use format("ems")'
        raise ConfigError([Problem(f"option {name}", given.get(name, ""), fix) for name, on in refused.items() if on])
    options = only_part(options)
    stream = open_stream(options.profile).streams.server(options.server or MAIN)

    def plan(session: Session) -> list[Slice]:
        return planning.split_by(session, options, planning.plan(session, options))

    try:
        slices = stream.database.call(plan)
    finally:
        stream.database.thread_session().close()
    url = DatabaseUrl.parse(stream.url)
    properties = {"user": url.user, "password": url.password, "driver": driver, "fetchsize": str(fetchsize)}
    properties |= {"preferTimestampNTZ": "true"}  # the driver would read the server's UTC as this machine's zone
    address = f"jdbc:mysql://{url.host}:{url.port}/{url.database}"
    predicates = [scan.predicate(one.offsets) for one in slices] or ["1 = 0"]
    frame = spark.read.jdbc(address, scan.dbtable(), predicates=predicates, properties=properties)
    return _like_kafka(frame, {one.offsets.topic_id: one.topic for one in slices})


def _like_kafka(frame: Any, names: dict[int, str]) -> Any:
    from pyspark.sql import functions

    topic = functions.lit(None).cast("string")
    for number, name in names.items():
        topic = functions.when(functions.col("topic_id") == number, functions.lit(name)).otherwise(topic)
    if len(names) == 1:  # then the topic's id need not be read
        topic = functions.lit(*names.values())
    exact = functions.timestamp_micros("born_us")
    born = functions.col("born_at").cast("timestamp") if _is_all_utc(frame.sparkSession) else exact
    return frame.select(
        "key",
        functions.col("body").alias("value"),
        topic.alias("topic"),
        functions.col("partition").cast("int").alias("partition"),
        functions.col("place").alias("offset"),
        born.alias("timestamp"),
        functions.lit(LOG_APPEND_TIME).alias("timestampType"),
    )


def _is_all_utc(spark: Any) -> bool:
    """Return whether times can be read as times, which is faster: the driver reads them in the zone of its Java.

    In a zone with summer time, an hour of each autumn has two meanings, and one of each spring has none. The zones of a
    cluster's executors are not known here.
    """
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    if context is None or not context.master.startswith("local["):
        return False
    here = context._jvm.java.util.TimeZone.getDefault().getID()
    return {here, spark.conf.get("spark.sql.session.timeZone")} <= _UTC
