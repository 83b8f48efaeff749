"""``ems top``: its screens, what it prints without a terminal, and what each role sees."""

from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from emsworker import Ems as App
from emsworker.admin.monitoring import Monitoring
from emsworker.core.errors import StoreUnavailable
from emsworker.core.ids import short_client
from emsworker.local import LocalDatabase
from emsworker.top.commands import Viewer
from emsworker.top.screens import GROUP_COLUMNS, GroupsScreen, Rates, Reader, TraceScreen
from tests.cli.test_commands import rows
from tests.cli.test_terminal import TEXT, printed
from tests.support import rows as writing
from tests.support.commands import Ems
from tests.support.roles import users
from tests.support.terminal import terminal


def test_the_trace_in_top_folds_a_long_error_and_fits_the_screen() -> None:
    screen = TraceScreen("main", "t", 0, 1)
    step = {"group": "", "state": "timeout", "at": datetime(2026, 1, 31, 12, tzinfo=UTC), "client": "10.0.0.5"}
    screen._rows = [step | {"attempt": number, "text": f"Error: {TEXT} {TEXT} end"} for number in range(20)]
    screen.selected = 13
    lines = printed(Viewer(Readings(), screen, 1.0).draw(80, 24), 80)
    (chosen,) = (number for number, line in enumerate(lines) if line.split()[:2] == ["timeout", "13"])
    assert len(lines) <= 24 and "2026-01-31 12:00:00Z" in lines[chosen] and lines[-1].startswith("q quit")
    assert "end" in " ".join(lines[chosen : chosen + 8]).split()


def test_rates_are_of_the_time_between_two_readings(ems: Ems, app: App, url: str) -> None:
    app.send_many("orders", range(10))
    ems.ok("groups", "create", "orders", "mail")
    rates = Rates()
    rates.note(Monitoring(app).lag(), 100.0)
    assert rates.of == {("orders", "mail"): (None, None)}
    app.send_many("orders", range(20))
    writing.set_cursor(partial(rows, url), 6)
    rates.note(Monitoring(app).lag(), 110.0)
    assert rates.of == {("orders", "mail"): (2.0, 0.5)}


class Readings(Reader):
    """What a reader of a stream with two groups returns, until the server is away."""

    lags: ClassVar = {"mail": 1, "stats": 2}
    gone = False

    def __init__(self) -> None:
        super().__init__({})

    def groups(self, limit: int | None = None) -> list[dict[str, Any]]:
        if self.gone:
            raise StoreUnavailable("mysql://u:geheim@h/x could not be reached")
        empty = dict.fromkeys(GROUP_COLUMNS)
        return [empty | {"server": "main", "topic": "t", "group": name, "lag": lag} for name, lag in self.lags.items()]

    def clients(self) -> tuple[list[Any], list[Any]]:
        return [], []


def test_a_screen_keeps_its_row_and_its_rows() -> None:
    reader, screen = Readings(), GroupsScreen()
    screen.refresh(reader)
    screen.move(1)
    assert [row["group"] for row in screen.rows()] == ["stats", "mail"] and screen.selected == 1
    reader.lags = {"mail": 3, "stats": 2}
    screen.refresh(reader)
    assert screen.rows()[screen.selected]["group"] == "mail" and screen.selected == 0
    reader.gone = True
    screen.refresh(reader)
    assert len(screen.rows()) == 2 and screen.problem is not None and "geheim" not in screen.problem


def test_top_shows_groups_messages_and_a_trace(ems: Ems, busy: str) -> None:
    with terminal(ems, "top", "--interval", "250ms") as screen:
        before = screen.mode()
        screen.wait("orders", "mail", "stats", "1 client in 1 process", "q quit")
        screen.press("/sta\r")
        screen.wait("1 of 2", "'sta'")
        screen.press("\x1b")
        screen.wait("2 of 2")
        screen.press("/ü\r")
        screen.wait("0 of 2", "'ü'")
        screen.press("\x1b")
        screen.wait("2 of 2")
        screen.press("ss")
        screen.wait("by out_rate")
        screen.press(" ")
        screen.wait("PAUSED")
        screen.press(" c")
        screen.wait("Clients", short_client(busy))
        screen.press("\x1b")
        screen.wait("Groups")
        screen.press("t")
        screen.wait("Tasks", "EMS_TASK_FIGURES_S", "WAITING")
        screen.press("\x1b")
        screen.wait("Groups")
        screen.press("/mail\r\r")
        screen.wait("orders / mail", "1 running", "1 retry", "1 dead")
        screen.press("jj\r")
        screen.wait("orders/0/7", "dead", "out of attempts")
        screen.press("q")
        assert screen.end() == 0
        assert screen.mode() == before
        assert screen.raw.rstrip().endswith(b"\x1b[?25h\x1b[?1049l"), "the cursor and the former screen are back"


def test_top_prints_once_without_a_terminal(ems: Ems, busy: str) -> None:
    found = {one["group"]: one for one in ems.ok("top", "--json").json}
    mail = found["mail"]
    assert (mail["lag"], mail["running"], mail["retries"], mail["dead"]) == (19, 1, 1, 1)
    assert (mail["in_rate"], mail["out_rate"], mail["paused"]) == (0.0, 0.0, False)
    done = ems.ok("top", "--once", "--filter", "stats")
    assert done.out.split()[:5] == ["TOPIC", "GROUP", "STATE", "LAG", "IN/S"] and "mail" not in done.out
    wrong = ems("top", "--interval", "1ms")
    assert wrong.code == 2 and "at least 0.25 s" in wrong.err
    assert ems.ok("top", "--once", "--filter", "nope").err == "No group has 'nope' in its row.\n"


def test_without_rich_it_asks_for_its_extra(ems: Ems, busy: str) -> None:
    ems.write("sitecustomize.py", "import sys\nsys.modules['rich'] = None\n")
    with terminal(ems, "top", PYTHONPATH=str(ems.folder)) as screen:
        assert screen.end() == 2
        assert "pip install 'emsworker[cli]'" in screen.text and "--once" in screen.text
    with terminal(ems, "top", TERM="dumb") as screen:
        assert screen.end() == 0 and "stats" in screen.text and b"\x1b" not in screen.raw


def test_a_viewer_sees_everything_but_contents(ems: Ems, busy: str, server: LocalDatabase, url: str) -> None:
    with users(server, url) as make, terminal(ems, "top", "--filter", "mail", EMS_URL=make("viewer")) as screen:
        screen.wait("1 of 2")
        screen.press("\r")
        screen.wait("1 dead", "shop.add")
        screen.press("jj\r")
        screen.wait("orders/0/7", "dead", "unclaimed")
        assert "error:" not in screen.text
        screen.press("q")
        assert screen.end() == 0
