"""The reports on a stream that a real worker has worked on: each figure of each engine compared with plain Python's."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from emsworker.spark.jobs import JobResult, load
from emsworker.spark.jobs.output import as_json, write
from emsworker.spark.jobs.report import plain
from tests.spark.worked import IDLE, ORDERS, Worked, micros, nearest_rank, worked_stream
from tests.support.servers import TestServers, chosen_flavors

FAILURES = {"failed", "rejected", "timeout", "orphaned"}


@pytest.fixture(scope="module", params=chosen_flavors())
def worked(
    request: pytest.FixtureRequest, servers: TestServers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Worked]:
    """One for all tests: nothing changes it."""
    with worked_stream(servers.database(request.param), tmp_path_factory.mktemp("worked")) as worked:
        yield worked


@pytest.fixture(params=["spark", "polars"])
def engine(request: pytest.FixtureRequest) -> Any:
    """What a job is run with: a session of Spark, or nothing."""
    return request.getfixturevalue("spark_session") if request.param == "spark" else None


@pytest.fixture
def run(worked: Worked, profiles: Path) -> Callable[..., JobResult]:
    """Runs a job: ``run(session, "lag", every=60.0)``."""
    profiles.write_text(f"[test]\nurl = {worked.stream.url}\n", encoding="utf-8")

    def run_job(spark: Any, name: str, **options: Any) -> JobResult:
        job = load(name)
        result = job.run(spark, job.options(profile="test", **options))
        assert result.failure is None and result.report is not None
        return result

    return run_job


@pytest.fixture
def report(run: Callable[..., JobResult], engine: Any) -> Any:
    """Runs a job by an engine: ``report("lag", every=60.0)`` returns its summary, and its tables' rows by name."""

    def tables(name: str, **options: Any) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
        result = run(engine, name, **options)
        assert result.report is not None
        return dict(result.summary), {table.name: table.records() for table in result.report.tables}

    return tables


def test_the_stream_has_something_of_everything(worked: Worked) -> None:
    """Or else the comparisons below would say little."""
    outcomes = Counter(row[2] for rows in worked.attempts.values() for row in rows)
    assert outcomes["failed"] and outcomes["rejected"] and outcomes["done"]
    bad = [n for n in range(ORDERS) if n % 11 == 5 or n % 13 == 6]
    assert len(worked.dead) == len(bad)
    assert Counter(topic for topic, _, _ in worked.messages) == {
        "orders": ORDERS,
        "invoices": ORDERS - len(bad),
        "mails": ORDERS - len(bad),
        "idle": IDLE,
    }
    assert any(len(rows) > 1 for rows in worked.attempts.values())
    exported = [sent for _, sent in worked.messages.items() if sent.is_of("export")]
    assert 0 < sum(sent.task == "order" for sent in exported) < ORDERS


def test_lag_over_time(worked: Worked, report: Any) -> None:
    every_us = 100_000
    summary, tables = report("lag", every=0.1)
    born: Counter[tuple[str, str, int]] = Counter()
    ended: Counter[tuple[str, str, int]] = Counter()
    for group, place, sent in worked.everywhere():
        born[place[0], group, sent.born // every_us] += 1
        if (end := worked.ended(group, place)) is not None:
            ended[place[0], group, end // every_us] += 1
    spans: dict[tuple[str, str], list[int]] = {}
    for topic, group, span in [*born, *ended]:
        spans.setdefault((topic, group), []).append(span)
    expected = {}
    for (topic, group), found in spans.items():
        lag = 0
        for span in range(min(found), max(found) + 1):
            came, went = born[topic, group, span], ended[topic, group, span]
            lag += came - went
            drain = 0.0 if lag == 0 else round(lag / (went - came) * 0.1, 3) if went > came else None
            expected[topic, group, (span + 1) * every_us] = (came, went, lag, came * 10.0, went * 10.0, drain)
    values = ("born", "ended", "lag", "born_per_s", "ended_per_s")
    rows = {(row["topic"], row["group"], micros(row["at"])): row for row in tables["lag"]}
    assert {key: tuple(row[name] for name in values) for key, row in rows.items()} == {
        key: row[:5] for key, row in expected.items()
    }
    for key, row in rows.items():
        assert row["drain_s"] == pytest.approx(expected[key][5], abs=0.0011)
    assert {row["lag"] for row in rows.values() if row["group"] == "nobody"} == {IDLE}
    assert summary["lag_now"] == IDLE == sum(row["lag"] for row in tables["now"])
    assert summary["peak"] == max(row[2] for row in expected.values())


def test_topics_by_messages_bytes_and_errors(worked: Worked, report: Any) -> None:
    window_us = 500_000
    summary, tables = report("topics", window=0.5)
    expected: dict[tuple[int, str], list[int]] = {}

    def count(time: int, topic: str, *values: int) -> None:
        row = expected.setdefault((time // window_us * window_us, topic), [0, 0, 0, 0])
        for number, value in enumerate(values):
            row[number] += value

    for place, sent in worked.messages.items():
        count(sent.born, place[0], 1, sent.size)
    for (_, place), rows in worked.attempts.items():
        for ended, _, outcome, *_ in rows:
            if outcome in FAILURES:
                count(ended, place[0], 0, 0, 1)
    for (_, place), (at, *_) in worked.dead.items():
        count(at, place[0], 0, 0, 0, 1)
    found = {
        (micros(row["window"]), row["topic"]): [row[name] for name in ("messages", "bytes", "errors", "dead")]
        for row in tables["topics"]
    }
    assert found == expected
    for row in tables["topics"]:
        same = [values for (time, _), values in expected.items() if time == micros(row["window"])]
        for number, name in enumerate(("messages", "bytes", "errors")):
            assert row[f"by_{name}"] == 1 + sum(values[number] > row[name] for values in same)
    assert summary["messages"] == len(worked.messages)
    assert summary["dead"] == len(worked.dead)


def test_topics_shows_the_first_by_what_was_asked_for(worked: Worked, report: Any) -> None:
    _, tables = report("topics", window=86400.0 * 365, by="errors", top=1)
    assert [row["topic"] for row in tables["topics"]] == ["orders"]


@pytest.mark.parametrize("by", [(), ("topic", "hour")])
def test_latency_percentiles(worked: Worked, report: Any, by: tuple[str, ...]) -> None:
    _, tables = report("latency", by=by)
    by = by or ("topic", "group", "task")
    queued: dict[tuple[Any, ...], list[float]] = {}
    ran: dict[tuple[Any, ...], list[float]] = {}
    for group, place, sent in worked.everywhere():
        hour = sent.born // 3_600_000_000 * 3_600_000_000
        names = {"topic": place[0], "group": group, "task": sent.task, "hour": hour}
        key = tuple(names[name] for name in by)
        claims = worked.claims.get((group, place), [])
        if claims:
            queued.setdefault(key, []).append((min(claim[0] for claim in claims) - sent.born) / 1000)
        if attempts := worked.attempts.get((group, place)):
            ran.setdefault(key, []).extend(float(row[3]) for row in attempts if row[3] is not None)
        elif claims:
            _, progress, _, count, _ = max((claim for claim in claims if claim[4]), key=lambda claim: claim[1])
            began = max((claim for claim in claims if claim[4]), key=lambda claim: claim[1])[0]
            ran.setdefault(key, []).append((progress - began) / 1000 / count)
    keys = {key for key in {*queued, *ran} if queued.get(key) or ran.get(key)}
    rows = {tuple(micros(row[name]) if name == "hour" else row[name] for name in by): row for row in tables["latency"]}
    assert set(rows) == keys
    for key, row in rows.items():
        for prefix, values, count in (("queued", queued.get(key, []), "messages"), ("ran", ran.get(key, []), "runs")):
            assert row[count] == len(values)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)):
                wanted = pytest.approx(nearest_rank(values, share), abs=0.001) if values else None
                assert row[f"{prefix}_{name}_ms"] == wanted, (key, prefix, name)


def test_trace_tells_a_story_from_any_of_its_messages(worked: Worked, report: Any) -> None:
    roots = [(place, sent) for place, sent in worked.messages.items() if place[0] == "orders"]
    of = {sent.headers.get("causation-id"): (place, sent) for place, sent in worked.messages.items()}
    retried = next(
        (place, sent)
        for place, sent in roots
        if len(worked.attempts.get(("sellers", place), [])) > 1 and sent.uid in of and not sent.is_of("export")
    )
    place, sent = retried
    invoice_place, invoice = of[sent.uid]
    mail_place, mail = of[invoice.uid]
    summary, tables = report("trace", id=mail.uid)
    assert summary["correlation-id"] == sent.uid
    assert (summary["messages"], summary["depth"], summary["topics"]) == (3, 2, ["invoices", "mails", "orders"])
    rows = tables["messages"]
    assert [(row["depth"], row["id"], row["group"]) for row in rows] == [
        (0, sent.uid, "audit"),
        (0, sent.uid, "sellers"),  # and not the group whose filter leaves it out
        (1, invoice.uid, "clerks"),
        (2, mail.uid, "post"),
    ]
    for row, where in zip(rows, (place, place, invoice_place, mail_place), strict=True):
        assert (row["topic"], row["partition"], row["offset"]) == where
        claims = worked.claims[row["group"], where]
        claimed, ended = min(claim[0] for claim in claims), worked.ended(row["group"], where)
        assert micros(row["claimed_at"]) == claimed
        assert micros(row["ended_at"]) == ended
        assert row["queued_ms"] == (claimed - worked.messages[where].born) / 1000
        assert (row["state"], row["task"]) == ("done", worked.messages[where].task)
    last = worked.attempts["sellers", place][-1]
    assert rows[1]["client"] == last[4] == rows[2]["producer_thread"], "the thread that ran the second attempt sent it"
    assert rows[3]["producer_thread"] == rows[2]["client"] == worked.claims["clerks", invoice_place][0][2]
    assert rows[0]["producer_thread"] is None and rows[0]["producer"] == sent.producer
    assert [(row["attempt"], row["outcome"]) for row in tables["attempts"]] == [(1, "failed"), (2, "done")]
    assert tables["attempts"][0]["error"] == "tests.spark.apps.shop.BankAway: try again"


def test_dead_letters_by_exception(worked: Worked, report: Any, tmp_path: Path) -> None:
    summary, tables = report("deadletters", samples=2)
    rejected = {place: at for (_, place), (at, reason, _) in worked.dead.items() if "not for us" in reason}
    wrong = {place: at for (_, place), (at, reason, _) in worked.dead.items() if "not for us" not in reason}
    expected = {"ValueError": wrong, "emsworker.core.errors.Reject": rejected}
    assert summary["letters"] == len(worked.dead)
    assert {row["exception"] for row in tables["deadletters"]} == set(expected)
    for row in tables["deadletters"]:
        letters = expected[row["exception"]]
        assert (row["topic"], row["group"], row["letters"]) == ("orders", "sellers", len(letters))
        assert (micros(row["first_seen"]), micros(row["last_seen"])) == (min(letters.values()), max(letters.values()))
        newest = sorted(letters, key=lambda place: (-letters[place], place))[:2]
        assert row["samples"] == ["/".join(map(str, place)) for place in newest]
    assert next(row["example"] for row in tables["deadletters"] if row["exception"] == "ValueError").startswith(
        "ValueError: no article"
    )


def test_a_replay_file_runs_the_chosen_dead_letters_again(worked: Worked, report: Any, tmp_path: Path) -> None:
    from emsworker.admin import Admin

    file = tmp_path / "again.txt"
    summary, _ = report("deadletters", exception="ValueError", group="sellers", replay=str(file))
    chosen = sorted(place for (_, place), (_, reason, _) in worked.dead.items() if "not for us" not in reason)
    lines = file.read_text().splitlines()
    assert lines == ["/".join(map(str, place)) for place in chosen]
    assert summary["to_replay"] == len(lines)
    dead = Admin(worked.stream.app).dead
    refs = [ref for line in lines for ref in dead.find(line, None, "sellers")]
    assert [("orders", *ref.place) for ref in refs] == chosen, "`ems dead requeue -` finds them by these lines"


@pytest.mark.parametrize("name", ["lag", "trace"])
def test_every_table_can_be_written_as_parquet_and_html(
    worked: Worked, spark_session: Any, run: Callable[..., JobResult], engine: Any, name: str, tmp_path: Path
) -> None:
    options = {"trace": {"id": "invoice", "header": "ems-task", "topic": ("invoices",)}, "lag": {"every": 3600.0}}[name]
    result = run(engine, name, **options)
    assert result.report is not None
    files = write(result.report, "parquet", tmp_path / "tables", result.summary)
    for table, file in zip(result.report.tables, files, strict=True):
        assert spark_session.read.parquet(str(file)).count() == len(table.rows)
    if name == "trace":
        ids = {row["id"] for row in result.report.tables[0].records()}
        assert ids == {sent.uid for place, sent in worked.messages.items() if place[0] == "invoices"}
    (page,) = write(result.report, "html", tmp_path / "page.html", result.summary)
    text = page.read_text()
    assert "src=" not in text and "http" not in text, "nothing is loaded from anywhere"
    assert ("<svg" in text) is bool(result.report.charts)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lag", {"every": 0.07}),
        ("lag", {"every": 3600.0, "topic": ("orders",), "group": "sellers"}),
        ("topics", {"window": 0.3, "by": "bytes", "top": 2}),
        ("latency", {}),
        ("latency", {"by": ("hour",), "topic": ("orders", "mails")}),
        ("latency", {"group": "export"}),
        ("trace", {"id": "order", "header": "ems-task"}),
        ("trace", {"id": "eu", "header": "region", "topic": ("orders",), "group": "export"}),
        ("deadletters", {"samples": 1}),
    ],
)
@pytest.mark.parametrize("half", ["all", "since", "until"])
def test_both_engines_say_the_same(
    worked: Worked, run: Callable[..., JobResult], spark_session: Any, name: str, options: dict[str, Any], half: str
) -> None:
    times = sorted(sent.born for sent in worked.messages.values())
    middle = datetime.fromtimestamp(times[len(times) // 2] // 1_000_000, UTC)
    if half != "all":
        options = {**options, half: middle + timedelta(seconds=half == "until")}
    one, other = (run(spark, name, **options) for spark in (spark_session, None))
    assert one.report is not None and other.report is not None
    for table in [table for report in (one.report, other.report) for table in report.tables if table.name == "now"]:
        table.rows[:] = [(*row[:-1], None) for row in table.rows]  # the age of the oldest message grows meanwhile
    assert plain(one.summary) == plain(other.summary)
    assert as_json(one.report, {}) == as_json(other.report, {})
    assert [table.kinds for table in one.report.tables] == [table.kinds for table in other.report.tables]
    assert one.report.charts == other.report.charts
    assert half != "all" or all(table.rows for table in one.report.tables if table.name != "attempts")
