"""The dashboard of several servers: one page of all, the pages of each, and a server that is away."""

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from emsworker import Ems
from emsworker.core.errors import ConfigError
from emsworker.local import LocalDatabase
from emsworker.web import Visitor, ems_web
from tests.support.several import Several, several_databases
from tests.support.waiting import until
from tests.support.worker import ROOT

AWAY = " west=mysql://nobody@127.0.0.1:1/x west.*"


@pytest.fixture(scope="module")
def several(server: LocalDatabase) -> Iterator[Several]:
    with several_databases(server, "main", "east") as several:
        app = Ems(url=several.url, servers=several.setting(east="orders.*"))
        for topic, group in (("orders.new", "billing"), ("mail", "senders")):
            stream = app.streams.kept_by(topic)
            stream.group(stream.topic(topic), group)
        app.send_many("orders.new", range(7))
        app.send("mail", 1)
        app.close()
        yield several


def visit(several: Several, away: str = "", level: str = "operator", **options: str) -> TestClient:
    app = Ems(url=several.url, servers=several.setting(east="orders.*") + away, connect_timeout_s=1)
    site = ems_web(app, access=lambda request: Visitor("ann", level), **options)
    mounted = Starlette(routes=[Mount("/ops", site)])
    return TestClient(mounted, "http://localhost", headers={"sec-fetch-site": "same-origin"}, follow_redirects=False)


def test_one_page_shows_all_servers_and_links_to_each(several: Several) -> None:
    with visit(several) as client:
        front = client.get("/ops/")
        rows = dict(re.findall(r'<tr id="(server-\w+)">(.*?)</tr>', front.text, re.DOTALL))
        assert list(rows) == ["server-main", "server-east"] and "no beat" in rows["server-east"]
        groups = re.findall(r'<tr id="group-(\w+)-\d+">(.*?)</tr>', front.text, re.DOTALL)
        assert [name for name, _ in groups] == ["east", "main"], "the one with most lag first"
        assert 'href="/ops/on/east/groups/orders.new/billing"' in groups[0][1] and ">7<" in groups[0][1]
        for path in re.findall(r'href="(/ops/[^"]*)"', front.text):
            assert client.get(path).status_code == 200, path
        page = client.get("/ops/on/east/groups")
        assert "billing" in page.text and "senders" not in page.text
        assert 'href="/ops/on/east/" aria-current="page"' in page.text and 'href="/ops/on/main/"' in page.text


def test_what_is_typed_is_found_on_its_server(several: Several) -> None:
    app = Ems(url=several.url, servers=several.setting(east="orders.*"))
    uid = app.send("orders.new", 8).id
    app.close()
    with visit(several) as client:
        for what, server in ((uid, "east"), ("orders.new/0/1", "east"), ("orders.new", "east"), ("senders", "main")):
            found = client.get("/ops/go", params={"q": what})
            assert found.headers["location"].startswith(f"/ops/on/{server}/go?"), what
            assert client.get(client.get(found.headers["location"]).headers["location"]).status_code == 200, what
        assert client.get("/ops/go", params={"q": "gone"}).status_code == 404


def test_a_server_that_is_away_hides_no_other(several: Several) -> None:
    with visit(several, AWAY) as client:
        front = client.get("/ops/")
        assert front.status_code == 200 and "billing" in front.text
        (row,) = re.findall(r'<tr id="server-west">(.*?)</tr>', front.text, re.DOTALL)
        assert "away" in row and "127.0.0.1:1/x" in row
        assert client.get("/ops/on/west/").status_code == 503
        assert client.get("/ops/on/east/").status_code == 200


def test_changes_are_made_where_a_user_for_them_is_named(several: Several) -> None:
    east = several.urls["east"]
    with visit(several, operator_url=f"{several.url} east={east}") as client:
        for server, topic, group in (("main", "mail", "senders"), ("east", "orders.new", "billing")):
            back = f"/ops/on/{server}/groups/{topic}/{group}"
            action = f"/ops/on/{server}/do/pause"
            assert f'action="{action}"' in client.get(back).text
            form = {"topic": topic, "group": group, "back": back, "what": "pause"}
            done = client.post(action, data=form)
            assert done.status_code == 303 and done.headers["location"].startswith(back)
            assert "Paused" in client.get(back).text
            assert client.post(action, data=form | {"what": "resume"}).status_code == 303
    with visit(several, operator_url=f"east={east}") as client:
        assert "Nothing can be changed" not in client.get("/ops/on/east/groups/orders.new/billing").text
        assert "/do/pause" not in client.get("/ops/on/main/groups/mail/senders").text
    with pytest.raises(ConfigError, match="EMS_WEB_OPERATOR_URL = north: "):
        visit(several, operator_url=f"{several.url} north={east}")


def test_the_command_serves_all_servers_or_one(several: Several) -> None:
    variables = {"EMS_URL": several.url, "EMS_SERVERS": several.setting(east="orders.*")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    for options, words in (((), "Servers · EMS"), (("--server", "east"), "Overview · EMS")):
        command = [sys.executable, "-u", "-m", "emsworker", "web", "--port", "0", *options]
        with subprocess.Popen(
            command, cwd=ROOT, env=kept | variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                address = until(process.stdout.readline, 60, "it tells its address").split()[-1]
                with urllib.request.urlopen(address, timeout=30) as answer:
                    page = answer.read().decode()
                assert words in page and "billing" in page
            finally:
                process.terminate()
