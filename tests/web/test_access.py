"""Access: levels, passwords, proxies, the origin of a request; and the command that serves the dashboard."""

import base64
import hashlib
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from emsworker.cli.main import ems
from emsworker.core.errors import ConfigError
from emsworker.local import LocalDatabase
from emsworker.web import Passwords, ProxyUsers, access, ems_web
from emsworker.web.access import AccessRule, Guesses, password_line
from emsworker.web.site import _PAGES
from tests.support.servers import TestServers, few_flavors
from tests.support.streams import Stream
from tests.support.worker import LIBRARY
from tests.web.conftest import Visiting

STATIC = LIBRARY / "web" / "static"
HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"  # 4.0.1, as npm has it
CHANGING = [page.path.format(topic="orders", group="workers") for page in _PAGES if page.method == "POST"]
FORM = {
    "topic": "orders",
    "group": "workers",
    "what": "requeue",
    "confirm": "requeue all",
    "place": "workers|orders/0/1",
    "name": "shop.tidy",
}


@pytest.fixture(scope="module", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor: who may do what is decided before the database is asked."""
    return servers.database(request.param)


def test_htmx_is_the_published_one() -> None:
    assert hashlib.sha256((STATIC / "htmx.min.js").read_bytes()).hexdigest() == HTMX
    assert "Zero-Clause BSD" in (STATIC / "htmx.LICENSE.txt").read_text()


def test_nobody_but_an_operator_changes_anything(stream: Stream, visit: Visiting) -> None:
    before = stream.rows("SELECT COUNT(*), SUM(attempts) FROM ems_dead")
    assert len(CHANGING) >= 8
    for path in CHANGING:
        for level in ("viewer", "reader", None):
            assert visit(level).post(path, data=FORM).status_code == 403, (path, level)
        assert visit("operator", operator_url="").post(path, data=FORM).status_code == 403, (
            path
        )  # nothing to change with
        assert visit("operator").get(path).status_code in (404, 405), path
    assert stream.rows("SELECT COUNT(*), SUM(attempts) FROM ems_dead") == before
    assert stream.rows("SELECT * FROM ems_audit") == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost"}, 403),
        (
            {"sec-fetch-site": "same-origin", "host": "internal:9000", "origin": "https://ems.example"},
            303,
        ),  # a proxy's host
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost"}, 303),
        ({}, 403),
    ],
)
def test_a_change_comes_from_our_own_pages(
    stream: Stream, visit: Visiting, headers: dict[str, str], status: int
) -> None:
    client = visit("operator")
    del client.headers["sec-fetch-site"]
    found = client.post("/do/pause", data={"topic": "mails", "group": "senders", "what": "resume"}, headers=headers)
    assert found.status_code == status


def _client(stream: Stream, rule: AccessRule, peer: str = "testclient") -> TestClient:
    return TestClient(ems_web(stream.url, access=rule), "http://ems.example", client=(peer, 4711))


def _basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def test_passwords(stream: Stream, tmp_path: Path) -> None:
    file = tmp_path / "users"
    command = ["web", "password", "bob", "--access", "reader"]
    assert CliRunner().invoke(ems, command, input="").exit_code == 2
    piped = CliRunner().invoke(ems, command, input="correct horse\n")
    assert (piped.exit_code, piped.stderr, piped.stdout.count("\n")) == (0, "", 1)
    assert piped.stdout.startswith("bob:reader:")
    printed = CliRunner().invoke(ems, [*command, "--password", "correct horse"])
    file.write_text("# people\n" + printed.output + password_line("ann", "viewer", "battery staple") + "\n")
    assert "correct horse" not in file.read_text()
    client = _client(stream, Passwords(file))
    for headers in (
        {},
        _basic("bob", "wrong"),
        _basic("eve", "correct horse"),
        _basic("ann", "correct horse"),
        {"authorization": "Basic %%"},
    ):
        refused = client.get("/", headers=headers)
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic"), headers
    for _ in range(2):  # the second time without the slow hash
        assert ">bob<" in client.get("/", headers=_basic("bob", "correct horse")).text
        assert client.get("/", headers=_basic("bob", "correct hors")).status_code == 401
    assert client.get("/check", headers=_basic("ann", "battery staple")).status_code == 403
    for text in ("", "bob:reader:zz:zz", "bob:king:aa:aa", "bob"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="ems web password"):
            Passwords(file)
    with pytest.raises(ConfigError, match="8 characters"):
        password_line("ann", "viewer", "short")


def test_guesses_wait_are_logged_and_hold_up_nobody_who_is_in(
    stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hashed: list[str] = []

    def hash_(password: str, salt: bytes) -> bytes:
        hashed.append(password)
        return slow_hash(password, salt)

    slow_hash = access._slow_hash
    file = tmp_path / "users"
    file.write_text(password_line("ann", "viewer", "battery staple") + "\n")
    file.chmod(0o644)
    client = _client(stream, Passwords(file))
    assert "chmod 600" in caplog.text
    monkeypatch.setattr(access, "_slow_hash", hash_)
    monkeypatch.setattr(access, "ticks", lambda: 1000.0)  # no pause ends, however slow the machine is
    good = _basic("ann", "battery staple")
    assert client.get("/", headers=good).status_code == 200
    for number in range(20):
        assert client.get("/", headers=_basic("ann", f"guess {number}")).status_code == 401
        assert client.get("/", headers=good).status_code == 200, "who is in, stays in"
        assert client.get("/").status_code == 401
    assert hashed == ["battery staple", *(f"guess {number}" for number in range(5))], "the others were not looked at"
    assert "wrong password for 'ann' from testclient, 5 so far" in caplog.text
    for number in range(50):
        client.get("/", headers=_basic(f"user {number}", "guess"))
    assert len(hashed) < 35, "an address that tries many names waits, too"


def test_guesses_are_looked_at_again_after_their_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(access, "ticks", lambda: now[0])
    guesses = Guesses()
    for _ in range(7):
        assert guesses.may_try("10.0.0.1", "ann")
        guesses.failed("10.0.0.1", "ann")
        now[0] += 3.9  # less than the third pause, 4 s
    assert not guesses.may_try("10.0.0.1", "ann")
    assert guesses.may_try("10.0.0.1", "bob") and guesses.may_try("10.0.0.2", "ann")
    now[0] += 0.2
    assert guesses.may_try("10.0.0.1", "ann")
    guesses.succeeded("10.0.0.1", "ann")
    guesses.failed("10.0.0.1", "ann")
    assert guesses.may_try("10.0.0.1", "ann")
    for number in range(20_000):
        guesses.failed(f"address {number}", "ann")
    assert len(guesses._wrong) <= 10_000


def test_a_form_of_too_many_fields_is_refused(visit: Visiting) -> None:
    text = "&".join(f"f{number}=1" for number in range(5001))
    headers = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
    refused = visit("operator").post("/do/pause", content=text, headers=headers)
    assert refused.status_code == 413 and "at most 5000 fields" in refused.text


def test_a_proxy_is_believed_by_its_address(stream: Stream) -> None:
    rule = ProxyUsers(["10.0.0.5", "10.1.0.0/16"], {"ann": "reader", "*": "viewer"})
    for peer, headers, status in (
        ("10.0.0.5", {"x-forwarded-user": "ann"}, 200),
        ("10.1.2.3", {"x-forwarded-user": "ann"}, 200),
        ("10.1.2.3", {"x-forwarded-user": "bob"}, 403),
        ("10.1.2.3", {}, 403),
        ("10.0.0.6", {"x-forwarded-user": "ann"}, 403),
        ("10.0.0.6", {"x-forwarded-user": "ann", "x-forwarded-for": "10.0.0.5"}, 403),
    ):
        assert _client(stream, rule, peer).get("/check", headers=headers).status_code == status, (peer, headers)
    with pytest.raises(ConfigError, match="viewer, reader, operator"):
        ProxyUsers(["10.0.0.5"], {"ann": "king"})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="trusted proxy"):
        ProxyUsers(["proxy"], {})


def test_without_a_rule_only_this_machine_is_answered(stream: Stream) -> None:
    site = ems_web(stream.url)
    for base, status in (("http://localhost", 200), ("http://127.0.0.1:8800", 200), ("http://evil.example", 403)):
        assert TestClient(site, base).get("/").status_code == status, base
    for host, status in (("LOCALHOST:8800", 200), ("[::1]:8800", 200), ("127.0.0.1@evil.example", 403), ("evil.example:80@localhost", 403),
                         ("localhost/@evil.example", 403), ("", 403)):  # fmt: skip
        assert TestClient(site, "http://127.0.0.1").get("/", headers={"host": host}).status_code == status, host
    assert TestClient(site, "http://localhost").get("/check").status_code == 403  # as a viewer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "--password-file, --trust-proxy or --oidc-issuer"),
        (["--host", "ems.example", "--access", "operator"], "--password-file, --trust-proxy or"),
        (["--trust-proxy", "10.0.0.5"], "--user"),
        (["--trust-proxy", "10.0.0.5", "--user", "ann"], "NAME=LEVEL"),
        (["--trust-proxy", "10.0.0.5", "--user", "ann=king"], "viewer, reader, operator"),
        (["--password-file", "/nowhere/users"], "cannot be read"),
        (["--access", "viewer", "--password-file", "/nowhere/users"], "one of"),
    ],
)
def test_the_command_refuses_what_is_not_safe(options: list[str], words: str) -> None:
    found = CliRunner().invoke(ems, ["web", "--url", "mysql://u:secret@127.0.0.1:9/x", *options])
    assert found.exit_code == 2 and words in found.output and "secret" not in found.output


def test_a_wrong_url_for_changes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMS_WEB_OPERATOR_URL", "postgres://u:secret@db/x")
    with pytest.raises(ConfigError, match="EMS_WEB_OPERATOR_URL") as refused:
        ems_web("mysql://u@127.0.0.1:9/x")
    assert "secret" not in str(refused.value)


def test_the_policy_forbids_everything_that_is_not_ours(visit: Visiting, stream: Stream) -> None:
    client = visit("viewer")
    found = client.get("/")
    policy = found.headers["content-security-policy"]
    assert "unsafe" not in policy and "http" not in policy and "frame-ancestors 'none'" in policy
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', found.text):
        asset = client.get(path)
        assert (
            asset.status_code == 200
            and "immutable" in asset.headers["cache-control"]
            and asset.headers["x-content-type-options"] == "nosniff"
        )
    assert client.get("/static/../site.py").status_code == 404
    assert client.post("/do/pause", content=b"{}", headers={"content-type": "application/json"}).status_code == 400
    assert visit("operator").post("/do/pause", data={"x": "y" * 300_000}).status_code == 413


def test_the_command_serves_until_it_is_told_to_stop(stream: Stream) -> None:
    environment = {**os.environ, "EMS_URL": stream.url}
    command = [sys.executable, "-m", "emsworker", "web", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.status == 200 and b"Overview" in answer.read()
        refused = CliRunner().invoke(
            ems, ["web", "--url", stream.url, "--port", address.rstrip("/").rpartition(":")[2]]
        )
        assert refused.exit_code == 2 and "choose another --host or --port" in refused.output
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
