"""Every page: read by each level, with bad input, without the database; and one reading for many viewers."""

import io
import re

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from emsworker.admin import Admin
from emsworker.admin.audit import Audit
from emsworker.local import LocalDatabase
from emsworker.web import ems_web, ems_wsgi
from emsworker.web.site import _PAGES
from tests.support.recycling import recycled_database
from tests.support.roles import users
from tests.support.streams import Stream, open_stream
from tests.web.conftest import Visiting
from tests.web.stage import NASTY, furnish

PAGES = (
    "/", "/?hours=72", "/topics", "/topics/orders", "/groups", "/groups?state=paused", "/groups/orders/workers", "/messages?topic=orders",
    "/messages?topic=orders&order=oldest&partition=1", "/messages/orders/0/20", "/trace", "/trace?id=orders/0/1", "/trace?id=orders/1/1",
    "/dead", "/dead?task=shop.charge&error=TimeoutError", "/delayed", "/retries", "/retries?topic=orders&group=workers", "/running", "/clients",
    "/schedules", "/alarms", "/tasks", "/tasks?topic=orders&within=10+min&q=shop",
)  # fmt: skip
FOR_READERS = (
    "/messages?topic=orders&where=body.total>10", "/messages?topic=orders&from=-20&tag=vip", "/dead/orders/workers/0/1",
    "/groups/orders/workers/reset?plan=1&to=earliest", "/groups/orders/workers/skip?plan=1&keep=0",
    "/groups/orders/workers/replay?plan=1&everything=1", "/check",
)  # fmt: skip
BAD = {
    "/nothing": 404, "/topics/gone": 404, "/groups/orders/gone": 404, "/groups/gone/workers": 404, "/messages?topic=gone": 404,
    "/messages?topic=orders&where=tag=": 400, "/messages?topic=orders&from=yesterday": 400, "/messages?topic=orders&after=x": 400,
    "/messages?topic=orders&partition=9": 400, "/messages?topic=orders&partition=x": 400, "/messages?topic=orders&after=0/999999": 200,
    "/messages/orders/0/999999": 200, "/messages/orders/x/1": 400, "/trace?id=nonsense": 400, "/trace?id=orders/0/99999": 404,
    "/trace?id=01a2045d-8c72-7ed0-8791-596227901627": 404, "/dead?since=soon": 400, "/dead?after=xx": 400, "/dead?topic=gone": 404,
    "/dead/orders/workers/0/900": 404, "/dead/orders/workers/0/x": 400, "/dead/all/burn": 404, "/delayed?topic=gone": 404, "/tasks?topic=gone": 404, "/delayed?after=AA": 400,
    "/retries?group=gone": 404, "/running?after=%00": 400, "/?hours=5": 400, "/go?q=gone": 404, "/audit?after=1": 400,
    "/groups/orders/workers/burn": 404, "/groups/orders/workers/reset?plan=1": 400, "/groups/orders/workers/reset?plan=1&to=soon": 400,
    "/groups/orders/workers/reset?plan=1&to=999": 400, "/groups/orders/workers/skip?plan=1": 400, "/groups/orders/workers/skip?plan=1&keep=-1": 400,
    "/groups/orders/workers/replay?plan=1": 400, "/groups/orders/workers/replay?plan=1&where=(": 400, "/do/dead": 405,
}  # fmt: skip


_NOTHING = "\u2013"


def _words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def test_pages_show_each_level_what_it_may_see(stream: Stream, visit: Visiting, server: LocalDatabase) -> None:
    with users(server, stream.url) as make:
        as_viewer, as_reader = make("viewer"), make("reader")
        # The level alone, the database's privileges alone, and both.
        visits = {
            "viewer": visit("viewer", as_viewer),
            "levelled": visit("viewer"),
            "reader": visit("reader", as_reader),
        }
        for path in PAGES:
            for name, client in visits.items():
                found = client.get(path)
                assert found.status_code == 200, (name, path, _words(found.text))
                assert name == "reader" or not any(
                    word in found.text for word in ("Traceback", "4111-1111", "insufficient")
                ), (name, path)
        for path in FOR_READERS:
            assert visits["reader"].get(path).status_code == 200, path
        assert (
            "insufficient funds" in visits["reader"].get("/dead").text
            and "4111-1111" in visits["reader"].get("/trace?id=orders/0/1").text
        )
        for client in visits.values():
            assert client.get("/audit").status_code == 403 and 'href="/audit"' not in client.get("/").text
        for path in FOR_READERS[2:]:
            for name in ("viewer", "levelled"):
                assert visits[name].get(path).status_code == 403, path
        # A reader for whom the database refuses the details sees the rest, and the reason.
        found = visit("reader", as_viewer).get("/dead")
        assert found.status_code == 200 and "the database user may not" in found.text and "CardDeclined" in found.text
        refused = visit("reader", as_viewer).get("/messages?topic=orders")
        assert refused.status_code == 403 and "The database refuses it" in refused.text


def test_messages_and_dead_letters_are_found_by_their_task(stream: Stream, visit: Visiting) -> None:
    client = visit("reader")
    tasks = re.compile(r"shop\.(?:charge|ship|invoice)")
    for path, found in (
        ("/messages?topic=orders&task=shop.ship", {"shop.ship"}),
        ("/messages?topic=orders&task=shop.ship&where=offset>0 or offset=0", {"shop.ship"}),
        ("/messages?topic=orders&task=o'clock", set()),
        ("/dead?task=shop.invoice", {"shop.invoice"}),
        ("/dead?task=(none)", set()),
    ):
        page = client.get(path)
        live = page.text.partition('id="live"')[2]
        assert page.status_code == 200 and {*tasks.findall(live)} == found, path
    assert '<option value="shop.charge">' in client.get("/dead").text


def test_bad_input_and_nobody_are_answered_clearly(
    stream: Stream, visit: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = visit("operator")
    for path, status in BAD.items():
        found = client.get(path)
        assert found.status_code == status, (path, found.status_code, _words(found.text))
        assert "Traceback" not in found.text and "text/html" in found.headers["content-type"]
    assert "must be one of 1, 6, 24, 72" in client.get("/?hours=abc").text
    assert "at position" in client.get("/messages?topic=orders&where=tag=").text  # with the form, to correct it
    for path in (*PAGES, *FOR_READERS, *BAD):
        assert visit(None).get(path).status_code == 403, path
    with monkeypatch.context() as patch:  # nothing is looked up for somebody who has no access
        patch.setattr(Audit, "get", lambda *_: pytest.fail("the audit was read"))
        refused = visit(None).get("/?did=01a2045d-8c72-7ed0-8791-596227901627")
        assert refused.status_code == 403 and "was changed" not in refused.text
    # A topic that goes while somebody looks at it; the snapshot still knows it.
    assert client.get("/topics/prices").status_code == 200
    stream.rows("UPDATE ems_topic SET name = 'costs' WHERE name = 'prices'")
    assert client.get("/topics/prices").status_code == 404


def test_pages_stay_out_of_markup_and_scripts(server: LocalDatabase, visit: Visiting) -> None:
    with recycled_database(server) as url, open_stream(url) as nasty:
        furnish(nasty, nasty=True)
        client = visit("operator", url)
        seen = False
        for path in (
            *PAGES,
            *FOR_READERS,
            "/go?q=" + NASTY,
            "/trace?id=" + NASTY,
            "/dead?task=" + NASTY,
            "/messages?topic=orders&where=" + NASTY,
        ):
            found = client.get(path)
            assert found.status_code < 500 and NASTY not in found.text and "<script>alert" not in found.text, path
            assert not re.search(r"<[^>]+\s(?:style|on\w+)=", found.text) and "49" + "'\"`" not in found.text, path
            assert found.headers["content-security-policy"].startswith("default-src 'none'"), path
            assert found.headers["cache-control"] == "no-store" and "<script>" not in found.text, path
            seen = seen or "&lt;script&gt;alert(1)&lt;/script&gt;" in found.text
        assert seen


def test_bodies_are_redacted_and_cut_and_never_unpickled(stream: Stream, visit: Visiting) -> None:
    reader = visit("reader", redact={"orders": ["card.number", "*.owner"]})
    text = reader.get("/trace?id=orders/0/1").text
    assert "4111-1111" not in text and "Ann" not in text and "19.5" in text and "•••" in text
    text = visit("reader", redact=lambda topic, body: {"topic": topic}).get("/dead/orders/workers/0/1").text
    assert not re.search(r"\b19\.5\b", text) and "orders" in text  # a time may have 19.512 seconds
    app = stream.app(accept=("json", "pickle"), serializer="pickle")
    pickled = app.send("mails", {"now": print})
    huge = stream.app().send("mails", "x" * 100_000)
    for receipt, note in ((pickled, "a body of pickle is not decoded"), (huge, "Only the first 64 KB")):
        found = reader.get(f"/trace?id={receipt.id}")
        assert note in found.text and len(found.text) < 90_000
    later = stream.rows("SELECT uid FROM ems_outbox LIMIT 1")[0][0].hex()
    delayed = f"{later[:8]}-{later[8:12]}-{later[12:16]}-{later[16:20]}-{later[20:]}"
    assert re.search(r"is delayed in topic .* it is due 20\d\d-", reader.get(f"/trace?id={delayed}").text)


def test_a_list_of_messages_shows_states_and_the_beginnings_of_bodies(stream: Stream, visit: Visiting) -> None:
    app = stream.app()
    topic = stream.topic("letters", partitions=1)
    first, second = stream.group(topic, "first"), stream.group(topic, "second")
    for body in ({"card": "4111", "n": 1}, "x" * 5000, {"card": "4222", "text": "y" * 5000}):
        app.send("letters", body)
    stream.app(serializer="yaml", accept=("yaml",)).send("letters", {"card": "4333"})
    stream.app(compression="zlib").send("letters", {"card": "4444"})
    stream.rows("UPDATE ems_cursor SET next_offset = 4 WHERE group_id = %s", first.id)
    stream.rows(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) VALUES (%s, 0, 2, 1, NOW(6))",
        first.id,
    )
    stream.rows("UPDATE ems_cursor SET next_offset = 2 WHERE group_id = %s", second.id)

    def cells(client: TestClient) -> list[list[str]]:
        text = client.get("/messages?topic=letters&order=oldest").text.partition('id="live"')[2]
        return [[_words(cell).strip() for cell in row.split("</td>")] for row in text.split("<tr id=")[1:]]

    rows = cells(visit("reader"))
    states = [row[4] for row in rows]
    assert states[:4] == ["done", "1 retry, 1 unclaimed", "1 unclaimed, 1 done", "unclaimed"]
    bodies = [row[6] for row in rows]
    assert bodies[0] == "{ &#34;card&#34;: &#34;4111&#34;, &#34;n&#34;: 1 }"
    assert bodies[1].endswith("xxx…") and len(bodies[1]) < 120 and "4222" in bodies[2]
    assert bodies[3] == "card: &#39;4333&#39;" and bodies[4] == _NOTHING, (
        "YAML as it is stored, what is compressed not at all"
    )
    hidden = [row[6] for row in cells(visit("reader", redact={"letters": ["card"]}))]
    assert "•••" in hidden[0] and hidden[1:] == [_NOTHING] * 4, "what is not decoded whole cannot be redacted"
    seen = cells(visit("viewer"))
    assert [row[4] for row in seen] == states and "4111" not in str(seen)


def test_fifty_viewers_cost_what_one_does(stream: Stream, visit: Visiting) -> None:
    client = visit("viewer")

    def reads() -> int:
        return stream.status("Com_select")["Com_select"]

    assert client.get("/").status_code == 200
    before = reads()
    for _ in range(50):
        assert client.get("/", headers={"hx-request": "true"}).text.strip().startswith('<div id="live"')
    # Each second or two some are read again; fifty readings would be 50 times as many.
    assert reads() - before < 300


def test_without_a_database_pages_say_so_and_come_back() -> None:
    site = ems_web("mysql://nobody:secret@127.0.0.1:9/gone", access=lambda request: "reader")
    with TestClient(site, "http://localhost") as client:
        found = client.get("/trace?id=orders/0/1")
    assert found.status_code == 503 and "MySQL cannot be reached" in found.text and found.headers["retry-after"]
    assert 'data-hx-trigger="ems-refresh"' in found.text and "secret" not in found.text  # the page asks again by itself


def test_it_is_mounted_in_other_applications(stream: Stream) -> None:
    host = Starlette(routes=[Mount("/ems", ems_web(stream.url))])
    client = TestClient(host, "http://localhost")
    page = client.get("/ems/groups/orders/workers")
    static = re.findall(r'(?:src|href)="(/ems/static/[^"]+)"', page.text)
    links = re.findall(r'<a href="(/[^"]*)"', page.text)
    assert page.status_code == 200 and len(static) >= 4 and all(link.startswith("/ems/") for link in links)
    assert 'data-hx-get="/ems/groups/orders/workers"' in page.text
    assert all(client.get(path).status_code == 200 for path in static)

    answers: list[str] = []
    environ = {
        **{"REQUEST_METHOD": "GET", "SCRIPT_NAME": "/ems", "PATH_INFO": "/topics", "SERVER_PROTOCOL": "HTTP/1.1"},
        **{"SERVER_NAME": "localhost", "SERVER_PORT": "80", "HTTP_HOST": "localhost", "wsgi.url_scheme": "http"},
        "wsgi.input": io.BytesIO(),
    }
    text = b"".join(ems_wsgi(stream.url)(environ, lambda status, headers, error=None: answers.append(status))).decode()
    assert answers[0].startswith("200") and 'href="/ems/topics/orders"' in text


def test_every_page_is_visited_here() -> None:
    """A page that is added is added above, too."""
    shapes = [re.compile(re.sub(r"\{\w+\}", "[^/]+", page.path)) for page in _PAGES if page.method == "GET"]
    visited = [path.partition("?")[0] for path in (*PAGES, *FOR_READERS, *BAD)]
    assert [shape.pattern for shape in shapes if not any(shape.fullmatch(path) for path in visited)] == []


def test_a_topic_shows_its_readers(stream: Stream, visit: Visiting) -> None:
    admin = Admin(stream.app())
    client = visit("viewer")
    assert "Readers that hold messages" not in client.get("/topics/prices").text
    stream.app().send("prices", 1)
    admin.readers.hold("prices", "lakehouse", {0: 1}, hold_for_s=7200)
    stream.rows(
        "INSERT INTO ems_position (topic_id, name, `partition`, next_offset, stored_at) "
        "SELECT id, 'cache/web/0', 0, 2, NOW(6) FROM ems_topic WHERE name = 'prices'"
    )
    fresh = visit("viewer")
    words = _words(fresh.get("/topics/prices").text)
    assert re.search(r"lakehouse held 1 1 1 1 \S+ (2h|1h 59m)", words), words
    assert re.search(r"Broadcast readers .* cache/web/0 closed 0 2 0 ", words), words
    stream.rows("UPDATE ems_hold SET lost_at = NOW(6)")
    assert "lakehouse lost 1 1 1 1" in _words(visit("viewer").get("/topics/prices").text)
