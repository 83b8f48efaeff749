"""Nothing of ours depends on what a server's defaults are: each hostile one, alone, under a stream with all kinds of work.

With EMS_TEST_HOSTILE=1 tests/process has all of them at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase as Server
from tests.process.stream import Stream, open_stream
from tests.support import hostile
from tests.support.commands import Ems
from tests.support.servers import connect, set_globals
from tests.support.waiting import until

NAMES = sorted({*hostile.statements("mariadb"), *hostile.statements("mysql")})
_VARIABLES = {
    "isolation": ("transaction_isolation", "tx_isolation"),
    "read_write": ("transaction_read_only", "tx_read_only"),
}
MANY = 330  # more than sql_select_limit


@pytest.fixture(params=NAMES)
def stream(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Stream]:
    """A stream on a server with one hostile setting."""
    statement = hostile.statements(server.flavor).get(request.param)
    if statement is None:
        pytest.skip("the other server's")
    variable = _VARIABLES.get(request.param, (request.param,) * 2)[server.flavor == "mariadb"]
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT @@GLOBAL.{variable}")
        ((before,),) = cursor.fetchall()
    set_globals(server, statement)
    try:
        with open_stream(server, tmp_path) as stream:
            yield stream
    finally:
        set_globals(server, f"SET GLOBAL {variable} = {before if isinstance(before, int | float) else repr(before)}")


def _look(stream: Stream, folder: Path) -> None:
    """Every command that looks, as an operator would use it whose server may answer late."""
    ems = Ems({"EMS_URL": f"{stream.url}?read_timeout_s=60", "EMS_CONNECT_TIMEOUT_S": "60"}, folder)
    for command in ("check", "topics list", "groups list", "clients", "messages list acts", "dead list"):
        done = ems(*command.split())
        told = command == "check" and done.code == 1 and "max_allowed_packet" in done.out and done.err.startswith("1 ")
        assert (done.code == 0 or told) and "Traceback" not in done.err, f"{command}: {done}"


def test_all_kinds_of_work(stream: Stream, tmp_path: Path) -> None:
    app = stream.app
    stream.send("acts", [{"n": n} for n in range(MANY)])
    stream.send("acts", [{"n": 1000, "do": "fail", "until": 1}, {"n": 1001, "do": "reject"}])
    stream.send("acts", [{"n": 1002}], countdown=0.5)
    assert app.send("acts", {"n": 1003}, dedup_key="it's \\ one").created
    assert not app.send("acts", {"n": 1003}, dedup_key="it's \\ one").created
    with app.transaction() as tx:
        tx.execute("INSERT INTO account VALUES (1, 0)")
        tx.send("acts", {"n": 1004})
    # A caller's own connection has the server's defaults; it must at least be able to write.
    with connect(stream.url, init_command="SET SESSION TRANSACTION READ WRITE") as connection:
        connection.begin()
        app.send("tx", {"n": 5000}, transaction=connection)
        connection.commit()
    stream.send("tx", [{"n": n, "do": "fail", "until": 1} if n % 50 == 0 else {"n": n} for n in range(MANY)])
    worker = stream.worker(topics=["acts", "tx"], groups=["a", "tx"], processes=2, threads=2)
    numbers = [*range(MANY), 1000, 1002, 1003, 1004]
    stream.wait_ended(numbers, 60, group="a")
    wanted = {*range(MANY), 5000}
    until(lambda: {row[0] for row in stream.rows("SELECT n FROM effect")} == wanted, 60, stream.logs())
    stream.wait_settled(30)
    assert sorted(row[0] for row in stream.rows("SELECT n FROM effect")) == sorted(wanted)
    assert [row[0] for row in stream.rows("SELECT reason FROM ems_dead")] == ["not wanted"]
    assert stream.one("SELECT COUNT(*) FROM ems_outbox") == 0
    _look(stream, tmp_path)
    stream.send("acts", [{"n": 2000}])
    stream.wait_ended([2000], 20, group="a")
    assert worker.stop() == 0
    ends = re.findall(r"^  Traceback .*\n(?:   .*\n)*  (.*)", worker.text(), re.MULTILINE)
    assert ends == ["emsworker.core.errors.Reject: not wanted"], worker.text()  # that of the dead letter, and no other
    assert stream.rows("SELECT * FROM ems_client") == []
