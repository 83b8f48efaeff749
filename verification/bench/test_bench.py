"""The benchmarks notice what is lost or doubled, and their tables say what was measured."""

import json
import os
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE, Popen, check_output
from typing import Any

import pytest

from bench import strangers, worker
from bench.app import build
from bench.lines import LINES
from bench.peers import compare, contest
from bench.peers.apps.tally import Tally
from bench.peers.arena import Arena
from bench.peers.compare import Comparison, PeersSize
from bench.peers.systems import EMS, PEERS
from bench.peers_report import table
from bench.plots import _bars
from bench.publish_docs import _with_older_studies
from bench.stage import QUICK, NotRight, Servers
from bench.strangers import Strangers
from bench.studies import report as studies_report
from bench.studies.backlog import drain, extend
from bench.studies.finding import Finding
from bench.studies.processes import family, resident_mib
from bench.suite import NAMES, chosen
from emsworker.core.url import DatabaseUrl

SMALL = PeersSize(repeats=1, waiting=300, waiting_slow=300, waiting_ours=600, ones=50, paced=40, per_s=100)


def test_names_choose_lines_peers_and_studies() -> None:
    some = chosen(["drain", "peers/huey", "flat"])
    assert [line.name for line in some.lines] == ["drain"]
    assert [peer.name for peer in some.peers] == ["huey"]
    assert len(some.studies) > 3
    assert all(study.name.startswith("flat/") for study in some.studies)
    every = chosen([])
    names = [*(line.name for line in every.lines), *(peer.line for peer in every.peers)]
    assert {*names, *(study.name for study in every.studies)} == {
        name for name in NAMES if "/" in name or name in names
    }


def test_a_message_that_never_ran_or_ran_twice_voids_a_run(tmp_path: Path) -> None:
    tally = Tally.create(tmp_path / "tally", 3)
    for number in range(2):
        tally.sent(number)
        tally.ran(number)
    with pytest.raises(NotRight, match="ems: 1 of 3 messages never ran"):
        contest._check(EMS, tally)
    tally.ran(2)
    contest._check(EMS, tally)
    Tally(tmp_path / "tally").ran(0)  # as another process would
    with pytest.raises(NotRight, match="3 messages ran 4 times"):
        contest._check(EMS, tally)


def test_latency_counts_from_the_call_to_the_first_run(tmp_path: Path) -> None:
    tally = Tally.create(tmp_path / "tally", 2)
    tally.sent(1)
    tally.ran(1)
    first = tally.records()[1]
    tally.ran(1)
    assert tally.records()[1] == (2, first[1], first[2])
    assert contest._latency(tally, 1) == {"p50 ms": (first[2] - first[1]) / 1e6, "p99 ms": (first[2] - first[1]) / 1e6}


@pytest.mark.slow
def test_a_peer_is_compared_with_ems_and_a_bare_limit(bench_servers: Servers, tmp_path: Path) -> None:
    original = next(peer for peer in PEERS if peer.name == "original")
    if bench_servers.redis is None:
        pytest.skip("no redis server")
    told: list[str] = []
    with Arena(bench_servers, tmp_path) as arena:
        found = compare.compare(arena, original, SMALL, told.append)
    assert len(told) == 4
    latency, rates = {"sender late by ms", "p50 ms", "p99 ms"}, {"enqueue/s", "consume/s"}
    assert {side: set(figures) for side, figures in found.sides.items()} == {
        "limit": {*rates, "enqueue in batches/s"},
        "peer": {*rates, *latency},
        "ems": {*rates, *latency, "enqueue in batches/s"},
        "ems-redis": latency,
    }
    assert all(value > 0 for side in found.sides.values() for name, [value] in side.items() if "late" not in name)
    assert found.server.startswith(bench_servers.database.flavor)


def comparison(line: str, consume: float, p99: float) -> Comparison:
    peer = {"enqueue/s": [100.0], "consume/s": [consume], "p99 ms": [p99]}
    ours = {"enqueue/s": [50.0, 150.0, 250.0], "consume/s": [900.0, 1000.0, 5000.0]}
    sides = {"peer": peer, "ems": ours, "ems-redis": {"p99 ms": [2.0]}, "limit": {"consume/s": [2 * consume]}}
    return Comparison(line, line.title(), "Redis 7", "synced", "at least once", 4000, "bare list", sides)


def test_the_table_of_peers_has_medians_and_ratios() -> None:
    rows = [comparison("one", 100.0, 8.0), comparison("two", 200.0, 4.0)]
    lines = table(rows).splitlines()
    assert "| **EMS** | 150 |  | 1,000 |  |  | synced at every commit |" in lines[2]
    assert lines[4] == "| One | 100 |  | 100 |  | 8.0 | Redis 7: synced | at least once |"
    assert lines[-2] == "| one | 10.00 | 1.50 | 4.00 | bare list: /s in, 200/s out | 0.50 | 4,000 |"
    assert lines[-1].startswith("| two | 5.00 | 1.50 | 2.00 |")
    assert _bars(rows, "consume/s", "ems") == [("One", 100.0), ("Two", 200.0), ("EMS", 1000.0)]
    assert _bars(rows, "p99 ms", "ems-redis")[-1] == ("EMS, woken by Redis", 2.0)


def test_the_table_of_a_study_compares_with_its_first_case() -> None:
    first, second = Finding("flat/x", "few"), Finding("flat/x", "many")
    for claim in (100.0, 300.0, 110.0):
        first.add(claim_us=claim)
        second.add(claim_us=2 * claim, messages_per_s=5)
    text = studies_report.table([first, second, Finding("cheap/y", "alone", {"ms": [1.0]})])
    assert text.splitlines()[:4] == [
        "| flat/x | claim µs | messages/s | of the first |",
        "| --- | ---: | ---: | ---: |",
        "| few | 110 |  | 1.00 |",
        "| many | 220 | 5 | 2.00 |",
    ]
    assert text.endswith("| alone | 1 | 1.00 |")


def test_a_copied_backlog_is_a_stream_without_holes_that_workers_drain(bench_servers: Servers) -> None:
    memory: list[float] = []
    with bench_servers.stage(QUICK) as stage:
        tasks = build(url=stage.url)
        tasks.noop.delay(0)
        topic_id = tasks.app.stream.catalog.topic("noop").id
        assert extend(stage, topic_id, 1234) == (2, 1235)
        stage.check("offsets", 1235, "SELECT COUNT(DISTINCT uid) FROM ems_message WHERE `offset` BETWEEN 1 AND 1235")
        tasks.noop.delay(1)  # the allocator goes on where the copies end
        stage.check("the last offset", 1236, "SELECT MAX(`offset`) FROM ems_message WHERE `offset` > 0")
        tasks.app.close()
        rate = drain(stage, topic_id, 766, worker.Shape("noop", 1, 2))
        stage.check("done", 766, "SELECT SUM(acked_to + 1 - GREATEST(lo, 1237)) FROM ems_claim WHERE acked_to > 1236")
        with worker.running(stage, worker.Shape("noop", 2, 1)) as process:
            memory += [resident_mib(pid) for pid in family(process.pid)]
    assert rate > 0
    assert len(memory) == 3  # a supervisor and two children
    assert all(mib > 5 for mib in memory)


def test_no_figure_is_taken_beside_clients_that_are_not_known(
    bench_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "_LEAVING_S", 0.2)
    url = DatabaseUrl.parse(bench_servers.database.admin_url)
    script = (
        "import sys, pymysql; c = pymysql.connect(host=sys.argv[1], port=int(sys.argv[2]), user=sys.argv[3], "
        "password=sys.argv[4]); print('connected', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", script, url.host, str(url.port), url.user, url.password]
    with bench_servers.stage(QUICK) as stage, stage.connect():
        strangers.refuse_clients(bench_servers.database.admin_url)  # this process's own are known
    with Popen(argv, stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"connected\n"
        with pytest.raises(Strangers, match=rf"clients .* does not know, end them: connection \d+ of {url.user} from"):
            bench_servers.stage(QUICK).__enter__()
        other.communicate()
    with bench_servers.stage(QUICK):
        pass


def test_no_figure_is_taken_beside_workers_of_another_benchmark() -> None:
    script = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(60)' bench.app >/dev/null & echo $!"
    pid = int(check_output(["sh", "-c", script]))  # its parent has ended: it was left over
    try:
        with pytest.raises(Strangers, match=rf"another benchmark run on this machine, .*\b{pid} \("):
            strangers.refuse_workers()
    finally:
        os.kill(pid, signal.SIGKILL)


def test_messages_that_fail_once_are_counted_when_they_were_retried(bench_servers: Servers) -> None:
    lines = {line.name: line for line in LINES}
    size = replace(QUICK, drained=300)
    for name in ("retries", "results"):
        with bench_servers.stage(size) as stage:
            assert lines[name].measure(stage)["messages/s"] > 0
            if name == "retries":
                stage.check("attempts", 600, "SELECT COUNT(*) FROM ems_attempt")


def test_a_study_that_was_measured_by_itself_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    def of(line: str, value: float) -> dict[str, Any]:
        return {"line": line, "case": "one", "figures": {"ms": [value]}}

    file = tmp_path / "studies.json"
    first = {"at": "2026-01-01", "findings": [of("cheap/start", 1.0), of("loaded/bodies", 2.0)]}
    file.write_text(json.dumps(_with_older_studies(first, file)))
    second = {"at": "2026-01-02", "findings": [of("flat/backlog", 3.0), of("cheap/start", 4.0)]}
    merged = _with_older_studies(second, file)
    assert merged["findings"] == [of("flat/backlog", 3.0), of("cheap/start", 4.0), of("loaded/bodies", 2.0)]
    assert merged["measured"] == {
        "flat/backlog": "2026-01-02",
        "cheap/start": "2026-01-02",
        "loaded/bodies": "2026-01-01",
    }
