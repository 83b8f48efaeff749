"""Commands that count retries and dead letters stop at 10,000 of a group, and say so."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from emsworker.cli.main import ems
from tests.store.test_flat_cost import SEQUENCE
from tests.support.streams import Stream

FEW, MANY = 12_000, 48_000


@pytest.mark.parametrize("command", [("groups", "list"), ("groups", "list", "t"), ("top", "--once")])
def test_a_list_of_groups_reads_no_more_of_a_longer_group(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("EMS_URL", stream.url)
    topic = stream.topic("t")
    group = stream.group(topic, "g")
    names = [str(name) for name, _ in stream.rows("SHOW GLOBAL STATUS LIKE 'Handler_read%%'")]

    def grow(lowest: int, highest: int) -> None:
        stream.rows(
            "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) "
            f"SELECT {group.id}, 0, n, 1, NOW(6) FROM {SEQUENCE} WHERE n > {lowest} AND n <= {highest}"
        )
        stream.rows("ANALYZE TABLE ems_retry")

    def reads(work: Callable[[], object]) -> int:
        before = sum(stream.status(*names).values())
        work()
        return sum(stream.status(*names).values()) - before

    def run(*options: str) -> str:
        done = CliRunner().invoke(ems, [*command, *options])
        assert done.exit_code == 0, done.output
        return done.output

    grow(0, FEW)
    few = reads(lambda: run("--json"))
    grow(FEW, MANY)
    assert reads(lambda: run("--json")) < few + 5_000, "36,000 retries more are not read"
    assert "10,000+" in run()
    (row,) = json.loads(run("--json"))
    assert (row["retries"], row["capped"]) == (10_000, True)
