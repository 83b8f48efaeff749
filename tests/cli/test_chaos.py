"""``ems chaos``: real workers are broken, the check agrees; then something is taken away, and it does not."""

import pytest

from tests.support.commands import Ems, wait_for
from tests.support.servers import connect

APP = """
    import time

    from emsworker import Ems
    from emsworker.chaos import Recorder

    app = Ems("shop", middleware=[Recorder("history")])


    @app.subscribe("orders", "billing")
    def bill(message):
        time.sleep(0.01)


    if __name__ == "__main__":
        app.send_many("orders", range(300))
        app.close()
"""
QUICK = {"lease_s": "2", "renew_s": "0.5", "lease_margin_s": "0.5", "beat_s": "0.2", "beat_lease_s": "1.5"}


@pytest.mark.slow
def test_break_and_check(bare: Ems, url: str) -> None:
    ems = Ems(
        {**bare.environ, "EMS_URL": url, **{f"EMS_{name.upper()}": value for name, value in QUICK.items()}}, bare.folder
    )
    ems.write("shop.py", APP)
    wrong = ems("chaos", "check", "nowhere")
    assert (wrong.code, len(wrong.errors)) == (2, 1) and "the one that Recorder was given" in wrong.err
    refused = ems("chaos", "break", "history")
    assert refused.code == 2 and "--yes" in refused.err
    with ems.running("worker", "-A", "shop", "-p", "2", "-t", "2", "--name", "victim") as worker:
        worker.wait_ready()
        ems.python("shop.py")
        broken = ems.ok(
            "chaos",
            "break",
            "history",
            "--for",
            "4s",
            "--every",
            "1s",
            "--name",
            "victim",
            "--seed",
            "3",
            "--yes",
            "--json",
        )
        assert {fault["fault"] for fault in broken.json["faults"]} <= {"kill", "pause", "connection"}
        assert len(broken.json["faults"]) >= 1
        during = ems.ok("chaos", "check", "history", "--json").json
        assert during["confirmed"] == 300 and during["findings"] == []
        wait_for(lambda: _left(url) == 0, worker.tell)
        after = ems.ok("chaos", "check", "history", "--settled", "--json").json
        assert after["runs"] >= 300 and after["findings"] == []
        assert worker.stop() == 0
    with connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE ems_message SET kind = 'tombstone', uid = NULL WHERE `offset` = 7")
    found = ems("chaos", "check", "history", "--json")
    assert found.code == 1
    assert [finding["kind"] for finding in found.json["findings"]] == ["lost"]
    assert "orders/0/7" in ems("chaos", "check", "history").out


def _left(url: str) -> int:
    with connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT COUNT(*) FROM ems_claim WHERE state <> 'done') + (SELECT COUNT(*) FROM ems_retry) "
            "+ (SELECT COUNT(*) FROM ems_cursor WHERE next_offset <= 300)"
        )
        return int(cursor.fetchall()[0][0])
