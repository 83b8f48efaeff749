"""Options of a read: those of Spark's Kafka source by the same names, and a few of our own.

All wrong options are reported at once, each by its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from emsworker.extending.errors import ConfigError, InvalidName, Problem
from emsworker.extending.settings import is_whole, whole
from emsworker.extending.stream import HOLD_FOR_S
from emsworker.extending.values import LONGEST_S, check_name, parse_duration

T = TypeVar("T")
Offsets = dict[str, dict[int, int]]
EARLIEST, LATEST = -2, -1
TOPIC_ID = "id"  # beside the partitions in the offsets that a streaming query reports
DATASETS = ("messages", "claims", "attempts", "retries", "deadletters")

_ENDS = ("endingoffsets", "endingoffsetsbytimestamp", "endingtimestamp")
_STREAM = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay")
_HOLDS = ("holdname", "holdfor")
_CLIENTS = (
    "groupidprefix",
    "kafkaconsumer.polltimeoutms",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
)


@dataclass(frozen=True)
class TopicSelection:
    """The topics, or partitions of topics, to read."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True)
class OffsetLimit:
    """The beginning or end of a read; the first given attribute in this list counts.

    Attributes:
        timestamp_ms: one time for all partitions, milliseconds since 1970.
        by_timestamp: times by topic and partition.
        offsets: ``earliest``, ``latest``, or offsets by topic and partition (-2 is earliest, -1 latest).
        strict: a time after the last message is an error, not the end.
    """

    offsets: Literal["earliest", "latest"] | Offsets
    timestamp_ms: int | None = None
    by_timestamp: Offsets | None = None
    strict: bool = True


class OptionReader:
    """Reads options by case-insensitive name, and collects problems.

    Args:
        given: the options from Spark.
        known: the allowed names in lower case; ``None`` for any.
        for_what: the operation in error messages, "a batch read".
    """

    def __init__(self, given: Mapping[str, str], known: Collection[str] | None, for_what: str) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self.problems: list[Problem] = []
        for name, value in given.items():
            if known is not None and name.lower() not in known:
                self.problems.append(Problem(f"option {name}", repr(_shown(name, value)), _fix(name, for_what)))

    def has(self, name: str) -> bool:
        return name.lower() in self._given

    def get(self, name: str, read: Callable[[str], T], default: T) -> T:
        """Return the value of an option; note a problem if it is wrong."""
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return read(text)
        except ValueError as error:
            self.problem(name, str(error))
            return default

    def problem(self, name: str, fix: str) -> None:
        """Note what is wrong with an option."""
        value = self._given.get(name.lower())
        self.problems.append(Problem(f"option {name}", "not given" if value is None else repr(value), fix))

    def check(self) -> None:
        """Raise ConfigError if there are problems."""
        if self.problems:
            raise ConfigError(self.problems)


def _shown(name: str, value: str) -> str:
    return "***" if re.search("passw|pwd|secret|token|url|user", name, re.IGNORECASE) else value


def _fix(name: str, for_what: str) -> str:
    if name.lower().startswith("kafka."):
        return "there is no Kafka client here; take it out (the server is named by EMS_URL or a profile)"
    if name.lower() in _CLIENTS:
        return "it is for Kafka's client; take it out (reading joins no group, and lost connections are made anew)"
    if name.lower() in _ENDS:
        return "a stream has no end; take it out, or end by trigger(availableNow=True)"
    if name.lower() in _STREAM:
        return "it is for readStream; minPartitions and maxRecordsPerPartition cut a batch read"
    if name.lower() in _HOLDS:
        return "it is for readStream; a program that reads in batches holds messages by Admin(app).readers.hold(...)"
    if name.lower() in ("url", "user", "password", "host"):
        return "options land in plans and logs; name the server by EMS_URL or a profile"
    return f"{for_what} has no such option; docs/how-to/spark.md lists them"


# -- values ------------------------------------------------------------------------------------------------------------


def boolean(text: str) -> bool:
    """Parse ``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


positive = whole(1).parse


def size(text: str) -> int:
    """Parse bytes, ``16m``, ``512k`` or ``1g``; at most 1 GiB, the limit of an Arrow batch."""
    match = re.fullmatch(r"(\d+)([kmg]?)b?", text.strip().lower())
    number = int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]] if match else 0
    if not 1 <= number <= 1 << 30:
        raise ValueError("must be a size like 512k, 16m or 1g, at most 1g")
    return number


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser that accepts one of the choices."""

    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return word

    return read


def reader_name(text: str) -> str:
    """Parse the name of a reader that holds messages."""
    try:
        return check_name("reader", text)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _whole_seconds(text: str) -> int:
    seconds = parse_duration(text)
    if not 1 <= seconds <= LONGEST_S:
        raise ValueError("must be a duration of a second or more, like 12h or 7d")
    return int(seconds)


def _milliseconds(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError("must be a time in milliseconds since 1970")
    return int(text)


def by_partition(text: str, least: int) -> Offsets:
    """Parse ``{"topic": {"0": 23, "1": -2}}``."""
    try:
        found = {
            str(topic): {int(number): _whole(offset) for number, offset in places.items() if number != TOPIC_ID}
            for topic, places in json.loads(text).items()
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ValueError('must be JSON like {"topic": {"0": 23, "1": -2}}') from None
    if any(number < least for places in found.values() for number in places.values()):
        raise ValueError(f"no number in it may be below {least}")
    return found


def _whole(value: Any) -> int:
    if not is_whole(value):
        raise TypeError(value)
    return value


def _offsets(text: str) -> Any:
    word = text.strip().lower()
    return word if word in ("earliest", "latest") else by_partition(text, EARLIEST)


def _ending_offsets(text: str) -> Any:
    found = _offsets(text)
    if found == "earliest" or (
        isinstance(found, dict) and any(n == EARLIEST for places in found.values() for n in places.values())
    ):
        raise ValueError("reading cannot end at the earliest offset (-2)")
    return found


def _starting_offsets(text: str) -> Any:
    found = _offsets(text)
    if found == "latest" or (
        isinstance(found, dict) and any(n == LATEST for places in found.values() for n in places.values())
    ):
        raise ValueError("a batch cannot begin at the latest offset (-1)")
    return found


def _assignment(text: str) -> Mapping[str, tuple[int, ...]]:
    try:
        return {str(topic): tuple(sorted(map(_whole, places))) for topic, places in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ValueError('must be JSON like {"topic": [0, 1]}') from None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("must name one or more topics, separated by commas")
    return names


# -- together ----------------------------------------------------------------------------------------------------------


def _option(name: str, read: Callable[[str], Any], default: Any = None) -> Any:
    """Define a field that is the option of this name."""
    return field(default=default, metadata={"option": (name, read)})


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Options of a reader; docs/how-to/spark.md explains each."""

    subscription: TopicSelection
    starting: OffsetLimit
    ending: OffsetLimit
    dataset: str = _option("dataset", one_of(*DATASETS), "messages")
    group: str | None = _option("group", str)
    profile: str | None = _option("profile", str)
    server: str | None = _option("server", str)
    min_partitions: int | None = _option("minPartitions", positive)
    max_records_per_partition: int | None = _option("maxRecordsPerPartition", positive)
    partition_bytes: int = _option("partitionBytes", size, 128 << 20)
    fetch_bytes: int = _option("fetchBytes", size, 8 << 20)
    fail_on_data_loss: bool = _option("failOnDataLoss", boolean, True)
    include_headers: bool = _option("includeHeaders", boolean, False)
    include_meta: bool = _option("includeMeta", boolean, False)
    include_cancelled: bool = _option("includeCancelled", boolean, False)
    push_filters: bool = _option("pushFilters", boolean, False)
    max_offsets: int | None = _option("maxOffsetsPerTrigger", positive)
    min_offsets: int | None = _option("minOffsetsPerTrigger", positive)
    max_trigger_delay_s: float = _option("maxTriggerDelay", parse_duration, 900.0)
    hold_name: str | None = _option("holdName", reader_name)
    hold_for_s: int = _option("holdFor", _whole_seconds, HOLD_FOR_S)


_SIMPLE: dict[str, tuple[str, Callable[[str], Any], Any]] = {
    one.name: (*one.metadata["option"], one.default) for one in fields(ReadOptions) if one.metadata
}
_KNOWN = {name.lower() for name, _, _ in _SIMPLE.values()} | {"subscribe", "subscribepattern", "assign", "engine"}
_KNOWN |= {f"starting{what}" for what in ("offsets", "timestamp", "offsetsbytimestamp", "offsetsbytimestampstrategy")}


def dataset_of(given: Mapping[str, str]) -> tuple[str, bool, bool]:
    """Return the options that select columns, dataset, includeHeaders and includeMeta; ignore the others."""
    options_in = OptionReader(given, None, "a read")
    dataset, headers, meta = (options_in.get(*_SIMPLE[name]) for name in ("dataset", "include_headers", "include_meta"))
    options_in.check()
    return dataset, headers, meta


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Check and read the options of a reader.

    Raises:
        ConfigError: names every wrong option.
    """
    known = _KNOWN if streaming else _KNOWN - set(_STREAM) - set(_HOLDS) | set(_ENDS)
    options_in = OptionReader(given, known, "a streaming read" if streaming else "a batch read")
    options = ReadOptions(
        subscription=_subscription(options_in),
        starting=_starting(options_in, streaming),
        ending=_ending(options_in),
        **{name: options_in.get(*option) for name, option in _SIMPLE.items()},
    )
    _check_together(options_in, options, streaming)
    options_in.check()
    return options


def _subscription(options_in: OptionReader) -> TopicSelection:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options_in.has(name)]
    if len(given) != 1:
        options_in.problem("subscribe", "give exactly one of subscribe, subscribePattern and assign")
    return TopicSelection(
        options_in.get("subscribe", _names, ()),
        options_in.get("subscribePattern", _pattern, None),
        options_in.get("assign", _assignment, None),
    )


def _starting(options_in: OptionReader, streaming: bool) -> OffsetLimit:
    strategy = options_in.get("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error")
    return OffsetLimit(
        options_in.get(
            "startingOffsets", _offsets if streaming else _starting_offsets, "latest" if streaming else "earliest"
        ),
        options_in.get("startingTimestamp", _milliseconds, None),
        options_in.get("startingOffsetsByTimestamp", lambda text: by_partition(text, 0), None),
        strict=strategy == "error",
    )


def _ending(options_in: OptionReader) -> OffsetLimit:
    return OffsetLimit(
        options_in.get("endingOffsets", _ending_offsets, "latest"),
        options_in.get("endingTimestamp", _milliseconds, None),
        options_in.get("endingOffsetsByTimestamp", lambda text: by_partition(text, 0), None),
        strict=False,
    )


def _check_together(options_in: OptionReader, options: ReadOptions, streaming: bool) -> None:
    engine = options_in.get("engine", one_of("python", "jdbc"), "python")
    if engine == "jdbc":
        options_in.problem(
            "engine", 'format("ems") runs in Python; emsworker.spark.read_jdbc(spark, ...) reads by JDBC'
        )
    if options.dataset == "messages":
        if options.group is not None:
            options_in.problem("group", "messages belong to no group; it goes with the other datasets")
    elif streaming:
        options_in.problem("dataset", "only messages can be streamed; the log of a group changes while it is read")
    if options.include_cancelled and options.dataset != "messages":
        options_in.problem("includeCancelled", "it goes with dataset=messages")
    if options_in.has("holdFor") and not options_in.has("holdName"):
        options_in.problem("holdFor", "it goes with holdName, the name under which the query holds messages")
    if options.min_offsets and options.max_offsets and options.min_offsets > options.max_offsets:
        options_in.problem("minOffsetsPerTrigger", "must not be above maxOffsetsPerTrigger")
