"""Names of tasks and texts of errors that nobody should send: refused where they are sent, and shown where they came in."""

import json
import re
import urllib.request

import pytest
from starlette.testclient import TestClient

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.core.errors import InvalidName
from emsworker.core.ids import new_uid, uid_text
from emsworker.web import Visitor, ems_web
from tests.process.stream import Stream
from tests.support.waiting import until

FORGED = "2026-11-25 10:00:00,000 ERROR   1 MainThread emsworker.beat.leader: forged"
NAMES = {
    "newline": f"a\n{FORGED}",
    "controls": "a\x00\x1b[31m\x85b",
    "half a pair": "a\ud800b",
    "separators": f"a\u2028{FORGED}\u202e",
    "a megabyte": "x" * 900_000,
    "a label": 'a"} 1\nems_forged{b="c\\',
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_is_none_is_refused_where_it_is_sent(name: str) -> None:
    app = Ems("names")
    with app.test() as test:
        with pytest.raises(InvalidName, match="is not a valid name") as refused:
            app.publisher.send("default", [[], {}], headers={"ems-task": name})
        assert len(str(refused.value)) < 1000 and not test.sent
        with pytest.raises(InvalidName):
            app.task(name=name)(print)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_came_in_by_sql_is_handled_everywhere(one_stream: Stream, log_format: str) -> None:
    stream = one_stream
    app = stream.app = Ems("caller", url=stream.url)
    says = app.task(name="says", result=True)(print)
    admin = Admin(app)
    admin.create_topic("default")
    admin.create_group("default", "workers", ladder="10ms", max_attempts=2)
    (topic_id,) = stream.rows("SELECT id FROM ems_topic WHERE name = 'default'")[0]
    most = min(900_000, stream.one("SELECT @@max_allowed_packet") // 2 - 8000)
    names = [name[:most] for name in NAMES.values()]
    blocks = [json.dumps({"content-type": "application/json", "ems-task": name}).encode() for name in names]
    uids = [new_uid() for _ in (*blocks, b"")]
    for uid, block in zip(uids, (*blocks, b'{"ems-task": "a\xff"}'), strict=True):
        stream.run(
            "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at) "
            "VALUES (%s, UTC_TIMESTAMP(6), %s, %s, '[[],{}]', 'sql', UTC_TIMESTAMP(6))",
            *(topic_id, uid, block),
        )
    said = [says.delay(text) for text in names]
    worker = stream.worker("tests.process.apps.metered:app", http="0", log_format=log_format)
    until(
        lambda: stream.rows("SELECT COUNT(*) FROM ems_dead") == [(len(uids) + len(said),)], 60, "all are dead letters"
    )
    failed = [app.result(one) for one in said]
    assert {one.status for one in failed} == {"failed"} and all("ValueError" in str(one.traceback) for one in failed)

    with urllib.request.urlopen(f"{worker.http}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert not re.search("^ems_forged", page, re.MULTILINE) and len(page) < 200_000
    pages = ems_web(stream.url, access=lambda request: Visitor("ann", "operator"), operator_url=stream.url)
    with TestClient(pages, "http://localhost") as client:
        for path in ("/dead", "/messages?topic=default", *(f"/trace?id={uid_text(uid)}" for uid in uids)):
            assert client.get(path).status_code == 200, path
    assert len(admin.dead.page(details=True, limit=100).rows) == len(uids) + len(said)
    worker.stop()
    lines = worker.text().split("\n")
    assert max(map(len, lines)) < 80_000
    if log_format == "json":
        found = [json.loads(line) for line in lines if line.startswith("{")]
        assert sum("attempt" in one for one in found) >= len(uids) + len(said)
        assert not re.search(r"(?<!\\)\\ud[89a-f]", worker.text()), "half a surrogate pair"
    else:
        assert "forged" in worker.text() and not [line for line in lines if line.startswith(FORGED)]
