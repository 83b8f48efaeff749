"""What the loaded lines count, and that they notice what is lost."""

from pathlib import Path

import pytest

from bench import latency, side, worker
from bench.app import build
from bench.stage import QUICK, NotRight, Servers, Stage
from bench.studies import loaded
from bench.studies.cheap import _judge_memory


def test_processes_at_once_count_what_each_of_them_did(bench_servers: Servers) -> None:
    with bench_servers.stage(QUICK) as stage:
        build(url=stage.url).app.stream.catalog.topic("events")
        count, per_s = side.at_once(["send", stage.url, "", "mysql"], 2, 0.3)
        stage.check(
            "sent",
            count,
            "SELECT COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 AND t.name = 'events'",
        )
    assert count > 2 and 0 < per_s <= 1.01 * count / 0.3


def test_processes_at_once_are_at_it_at_the_same_time() -> None:
    _, alone = side.at_once(["naps", "1", "0.02"], 1, 0.6)
    _, together = side.at_once(["naps", "1", "0.02"], 3, 0.6)
    assert together > 1.8 * alone, "one after another they would do as much as one"


def test_a_process_that_fails_voids_the_run(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotRight, match="a process for raw did not become ready"):
        side.at_once(["raw", "mysql://nobody@127.0.0.1:1/none"], 1, 0.1)
    assert "Connection refused" in capfd.readouterr().err


def test_naps_are_run_by_all_threads(bench_servers: Servers) -> None:
    with bench_servers.stage(QUICK) as stage:
        rate = loaded._nap(stage, 0.05, 900)
    # Acked offsets are written every 100 ms, so what is seen of them is a little uneven.
    assert 16 / 0.05 / 4 < rate < 1.3 * 16 / 0.05, "sixteen at once: not more, and by far more than four"


@pytest.mark.parametrize(("lines", "count"), [("0 5\n", 2), ("0 5\n0 6\n", 2), ("0 5\n1 5\n1 6\n", 2)])
def test_a_stamp_that_is_missing_or_there_twice_voids_the_run(
    tmp_path: Path, lines: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage("mysql://u@h/d", None, tmp_path, QUICK)
    monkeypatch.setattr(latency, "_STAMP_S", 0.1)
    (stage.folder / worker.STAMPS).write_text(lines)
    with pytest.raises(NotRight, match=f"runs of {count} messages"):
        latency.stamps(stage, count)


def test_memory_that_grows_or_is_too_much_voids_the_run() -> None:
    _judge_memory([40.0, 50.0, *[51.0] * 20])
    for seen, said in (([50.0] * 10 + [54.0], "50.0 MiB after a tenth, 54.0 at most"), ([61.0] * 5, "61.0 at most")):
        with pytest.raises(NotRight, match=said):
            _judge_memory(seen)
