"""Dates that are none, as plain SQL can write them: shown as unknown, and in nobody's way."""

import pytest
from click.testing import CliRunner

from emsworker.beat.services import LedStream, leader_services
from emsworker.cli.main import ems as command
from emsworker.core.config import Settings
from emsworker.local import LocalDatabase
from tests.support.recycling import recycled_database
from tests.support.servers import connect
from tests.support.streams import open_stream
from tests.web.conftest import Visiting
from tests.web.stage import furnish
from tests.web.test_pages import FOR_READERS, PAGES

LISTS = """
topics list --exact
topics stale orders
groups list --exact
groups list orders --partitions
servers list
clients
messages list orders
messages get orders/0/20
messages peek orders workers
trace orders/0/20
dead list --by error
dead show orders/0/1 --group workers
refused list
schedules list
readers list orders
alarms list
audit
top --once
""".strip().splitlines()


def _write_zeros(url: str, tables: set[str]) -> None:
    """Write zeros into every time of some tables, or of all."""
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(
            "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() "
            "AND DATA_TYPE IN ('datetime', 'timestamp')"
        )
        for table, column in cursor.fetchall():
            if not tables or table in tables:
                cursor.execute(f"UPDATE IGNORE `{table}` SET `{column}` = '0000-00-00'")


@pytest.mark.parametrize("tables", [{"ems_message", "ems_outbox", "ems_dedup"}, set()], ids=["a-producer-s", "all"])
def test_a_date_that_is_none_is_unknown_and_stops_nothing(
    server: LocalDatabase, visit: Visiting, tables: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    with recycled_database(server) as url, open_stream(url) as stream:
        furnish(stream)
        _write_zeros(url, tables)
        client = visit("operator", url)
        wrong = {path: got for path in (*PAGES, *FOR_READERS) if (got := client.get(path).status_code) != 200}
        assert not wrong, (wrong, caplog.text)
        environ = {"EMS_URL": url, "EMS_LOCAL_DIR": "/nonexistent/ems"}
        for line in LISTS:
            done = CliRunner().invoke(command, line.split(), env=environ)
            assert done.exit_code == 0, (line, done.output)
        shown = CliRunner().invoke(command, ["trace", "orders/0/20"], env=environ).output
        assert "unknown" in shown and "1970" not in shown
        if tables:  # nobody but the beat and workers may write the others
            for service in leader_services(LedStream()):
                service(stream.session, Settings(url=url))
            assert stream.value("SELECT COUNT(*) FROM ems_outbox") == 0, "what was due at no time is sent"
