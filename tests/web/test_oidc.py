"""Sign-in by OpenID Connect, at a provider that signs real tokens and can be told to make each of the known mistakes."""

import base64
import hashlib
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx2
import pytest
import uvicorn
from click.testing import CliRunner
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from emsworker.cli.main import ems
from emsworker.core.errors import ConfigError
from emsworker.local.ports import free_port
from emsworker.web import OpenIdUsers, ems_web

PUBLIC = "https://ops.example/ems"
SECRET, KEY = "s3cret&of the client", "k" * 40
NOBODY_ANSWERS = "mysql://u@127.0.0.1:9/x"
LEVELS: Any = {"groups=ops": "operator", "groups=staff": "viewer", "email=ann@example.com": "reader"}


TLS = httpx2.create_ssl_context()


class Provider:
    """A small OpenID provider; each code is good for once."""

    def __init__(self) -> None:
        self.key, self.stranger = (RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}) for _ in range(2))
        self.claims: dict[str, Any] = {}
        self.signed: Callable[[dict[str, Any]], str] = self.sign
        self.issuer = self.named = ""
        self._codes: dict[str, dict[str, str]] = {}
        self.app = Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discovery),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
            ]
        )

    def sign(self, claims: dict[str, Any]) -> str:
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, self.key)

    async def _discovery(self, request: Request) -> Response:
        places = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        found = {name: f"{self.issuer}/{place}" for name, place in places.items()}
        return JSONResponse({"issuer": self.named, "end_session_endpoint": f"{self.issuer}/bye", **found})

    async def _keys(self, request: Request) -> Response:
        return JSONResponse(KeySet([self.key]).as_dict(private=False))

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        assert asked["scope"] == "openid profile email groups"
        code = hashlib.sha256(asked["state"].encode()).hexdigest()
        self._codes[code] = asked
        answer = urlencode({"code": code, "state": asked["state"], "iss": self.named})
        return RedirectResponse(f"{asked['redirect_uri']}?{answer}")

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        asked = self._codes.pop(form["code"], None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        client = base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode()
        good = asked and asked["code_challenge"] == challenge.decode() and form["redirect_uri"] == asked["redirect_uri"]
        if not (good and asked and client == f"ems:{SECRET}"):
            return JSONResponse({"error": "invalid_grant"}, 400)
        now = int(time.time())
        usual = {"iss": self.issuer, "aud": "ems", "sub": "7", "iat": now, "exp": now + 300, "nonce": asked["nonce"]}
        claims = {name: value for name, value in {**usual, **self.claims}.items() if value is not None}
        return JSONResponse({"access_token": "at", "token_type": "Bearer", "id_token": self.signed(claims)})


@pytest.fixture(scope="module")
def served() -> Iterator[Provider]:
    provider = Provider()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        provider.issuer = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(provider.app, log_level="warning", lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield provider
        server.should_exit = True
        thread.join()


@pytest.fixture
def provider(served: Provider) -> Provider:
    served.claims = {"preferred_username": "ann", "groups": ["staff", "dev"]}
    served.signed, served.named = served.sign, served.issuer
    return served


def _rule(provider: Provider, **options: Any) -> OpenIdUsers:
    given = {"public_url": PUBLIC, "levels": LEVELS, "secret": SECRET, "scopes": ["groups"], "session_key": KEY}
    return OpenIdUsers(provider.issuer, "ems", **{**given, **options})


@pytest.fixture
def browser(provider: Provider) -> Iterator[TestClient]:
    """A browser that sees the public address; a proxy before the dashboard rewrites the host."""
    site = Starlette(routes=[Mount("/ems", ems_web(NOBODY_ANSWERS, access=_rule(provider)))])
    headers = {"host": "internal:9000", "sec-fetch-site": "same-origin"}
    with TestClient(site, "https://ops.example", headers=headers, follow_redirects=False) as client:
        yield client


def _follow(sent: Any) -> httpx2.Response:
    """Go to the provider, as a browser that is sent there."""
    return httpx2.get(sent.headers["location"], verify=TLS)


def _answer(browser: TestClient, page: str = "/ems/nowhere?x=1") -> str:
    """Go to a page, to the sign-in, and to the provider; return the address to which that one sends the browser back."""
    sent = browser.get(page)
    assert sent.status_code == 303 and sent.headers["location"].startswith("/ems/oidc/login?back=%2Fems%2F")
    sent = browser.get(sent.headers["location"])
    assert sent.status_code == 303 and sent.headers["cache-control"] == "no-store"
    cookie = sent.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", "Secure", "Path=/ems/oidc/callback"))
    back = _follow(sent).headers["location"]
    assert back.startswith(f"{PUBLIC}/oidc/callback?")
    return back.removeprefix("https://ops.example")


def test_people_sign_in_and_out(browser: TestClient, provider: Provider, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    other_tab, back = _answer(browser, "/ems/"), _answer(browser)
    before = dict(browser.cookies)
    entered = browser.get(back)
    assert entered.status_code == 303 and entered.headers["location"] == "/ems/nowhere?x=1"
    cookie = entered.headers.get_list("set-cookie")[0]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=lax", "Secure", "Path=/ems;"))
    name, _, value = cookie.split(";")[0].partition("=")
    forged = base64.urlsafe_b64encode(b'["ann","operator"]').decode() + value[value.index(".") :]
    for wrong in (forged, next(iter(before.values()))):
        forger = TestClient(browser.app, "https://ops.example", cookies={name: wrong}, follow_redirects=False)
        assert forger.get("/ems/nowhere").status_code == 303
    page = browser.get("/ems/nowhere")
    assert page.status_code == 404 and '<span class="who" title="viewer">ann (7)</span>' in page.text
    assert browser.post("/ems/do/pause", data={"topic": "t"}).status_code == 403  # as a viewer
    assert browser.get(other_tab).status_code == 303

    # What was answered once is worth nothing, also to somebody who has copied the cookies of before.
    assert browser.get(back).status_code == 403
    thief = TestClient(browser.app, "https://ops.example", cookies=before, follow_redirects=False)
    stolen = thief.get(back)
    assert stolen.status_code == 403 and "invalid_grant" in stolen.text

    refused = browser.post("/ems/oidc/logout", headers={"sec-fetch-site": "cross-site"})
    assert refused.status_code == 403 and browser.get("/ems/nowhere").status_code == 404
    assert browser.get("/ems/oidc/logout").status_code == 405
    left = browser.post("/ems/oidc/logout")
    assert left.status_code == 200 and f"{provider.issuer}/bye?client_id=ems" in left.text
    assert browser.get("/ems/nowhere").status_code == 303
    assert browser.get("/ems/nowhere", headers={"hx-request": "true"}).status_code == 401
    assert browser.post("/ems/do/pause", data={"topic": "t"}).status_code == 401

    told = caplog.text
    assert "ann (7) signed in as viewer" in told
    for secret in (SECRET, "id_token", *parse_qs(urlsplit(back).query)["code"], *before.values(), cookie.split(";")[0]):
        assert secret not in told.replace(f"GET https://ops.example{back}", "")  # the test's own client tells that


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"iss": "https://evil.example"}, "invalid_claim iss"),
        ({"iss": None}, "missing_claim"),
        ({"aud": "other"}, "invalid_claim aud"),
        ({"aud": ["ems", "other"]}, "another client"),
        ({"azp": "other"}, "another client"),
        ({"exp": 1_700_000_000}, "expired_token"),
        ({"exp": None}, "missing_claim"),
        ({"nonce": "of another sign-in"}, "invalid_claim nonce"),
        ({"nonce": None}, "missing_claim"),
        ({"groups": ["Ops", "ops "]}, "nobody has given you access"),
        ({"groups": "staffs"}, "nobody has given you access"),
        ({"groups": [], "email": "ann@example.com"}, "nobody has given you access"),  # it was not verified
    ],
)
def test_a_token_that_is_not_for_us_is_refused(
    browser: TestClient, provider: Provider, claims: dict[str, Any], words: str
) -> None:
    provider.claims |= claims
    _is_refused(browser, _answer(browser), words)


def test_a_signature_that_is_not_the_providers_is_refused(browser: TestClient, provider: Provider) -> None:
    shared = OctKey.generate_key(256)
    empty = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    forged: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("bad_signature", lambda claims: jwt.encode({"alg": "RS256", "kid": "one"}, claims, provider.stranger)),
        ("invalid_key_id", lambda claims: jwt.encode({"alg": "RS256", "kid": "two"}, claims, provider.key)),
        ("unsupported_algorithm", lambda claims: jwt.encode({"alg": "HS256", "kid": "one"}, claims, shared)),
        ("unsupported_algorithm", lambda claims: f"{empty}.{provider.sign(claims).split('.')[1]}."),
        ("not valid", lambda claims: "no token"),
    ]
    for words, provider.signed in forged:
        _is_refused(browser, _answer(browser), words)


def test_an_answer_that_this_browser_has_not_asked_for_is_refused(browser: TestClient, provider: Provider) -> None:
    back = _answer(browser)
    another = TestClient(browser.app, "https://ops.example", follow_redirects=False)
    for address in (back, "/ems/oidc/callback", back.replace("state=", "state=x")):
        _is_refused(another, address, "has not begun")
    _is_refused(browser, back.replace("127.0.0.1", "127.0.0.2"), "another issuer")
    _is_refused(browser, _answer(browser).replace("code=", "error=access_denied&no="), "access_denied")
    _is_refused(browser, _answer(browser).replace("code=", "error=<b>call+us</b>&no="), "neither a code nor an error")
    begun = browser.get("/ems/oidc/login", params={"back": "//evil.example"})
    entered = browser.get(_follow(begun).headers["location"])
    assert entered.headers["location"] == "/ems/"


def test_a_provider_that_is_another_one_or_away(provider: Provider) -> None:
    provider.named = "https://evil.example"
    browser = TestClient(ems_web(NOBODY_ANSWERS, access=_rule(provider)), "https://ops.example")
    _is_refused(browser, "/oidc/login", "names another issuer")
    rule = OpenIdUsers(f"http://127.0.0.1:{free_port()}", "ems", public_url=PUBLIC, levels={"*": "viewer"})
    away = TestClient(ems_web(NOBODY_ANSWERS, access=rule), "https://ops.example").get("/oidc/login")
    assert away.status_code == 503 and "cannot be read: ConnectError" in away.text


def test_the_highest_level_counts_and_a_session_holds_for_its_rules(provider: Provider) -> None:
    provider.claims = {"email": "ann@example.com", "email_verified": True, "groups": "staff", "aud": ["ems"]}

    def enter(rule: OpenIdUsers) -> TestClient:
        client = TestClient(ems_web(NOBODY_ANSWERS, access=rule), "https://ops.example", follow_redirects=False)
        sent = client.get(client.get("/nowhere").headers["location"])
        back = _follow(sent).headers["location"].replace("/ems", "")
        assert client.get(back).status_code == 303
        return client

    rule = _rule(provider, public_url="https://ops.example")
    client = enter(rule)
    assert '<span class="who" title="reader">ann@example.com</span>' in client.get("/nowhere").text
    for again, status in (
        (_rule(provider, public_url="https://ops.example"), 404),  # after a restart, or another process
        (_rule(provider, public_url="https://ops.example", session_key="another key" * 4), 303),
        (_rule(provider, public_url="https://ops.example", levels={"groups=ops": "viewer"}), 303),
    ):
        other = TestClient(ems_web(NOBODY_ANSWERS, access=again), "https://ops.example", follow_redirects=False)
        other.cookies.update(client.cookies)
        assert other.get("/nowhere").status_code == status


def _is_refused(browser: TestClient, address: str, words: str) -> None:
    refused = browser.get(address)
    assert refused.status_code == 403 and words in refused.text, refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]
    assert not any("Max-Age=28800" in cookie for cookie in refused.headers.get_list("set-cookie"))
    assert "Overview" not in refused.text and "data-hx-get" not in refused.text and "code=" not in refused.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--oidc-issuer", "http://idp.example"], "must be an https address"),
        (["--oidc-issuer", "https://idp.example", "--host", "0.0.0.0"], "needs --public-url"),
        (["--oidc-issuer", "https://idp.example", "--public-url", "ops.example"], "https://ops.example/ems"),
        (["--oidc-issuer", "https://idp.example", "--access", "viewer"], "Give one of"),
        (["--oidc-level", "groups=ops"], "CLAIM=VALUE:LEVEL"),
        (["--oidc-level", "groups:viewer"], "CLAIM=VALUE"),
        (["--oidc-level", "groups=ops:king"], "viewer, reader, operator"),
    ],
)
def test_the_command_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch, options: list[str], words: str) -> None:
    monkeypatch.setenv("EMS_WEB_OIDC_SECRET", SECRET)
    usual = ["--url", NOBODY_ANSWERS, "--oidc-issuer", "https://idp.example", "--oidc-client-id", "ems"]
    found = CliRunner().invoke(ems, ["web", *usual, "--oidc-level", "*:viewer", *options])
    assert found.exit_code == 2 and words in " ".join(found.output.split()) and SECRET not in found.output


def test_a_short_key_is_refused_without_being_shown(provider: Provider) -> None:
    with pytest.raises(ConfigError, match="32 characters") as refused:
        _rule(provider, session_key="short one")
    assert "short one" not in str(refused.value)


def test_the_extra_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "authlib", None)
    asked = ["--oidc-issuer", "https://idp.example", "--oidc-client-id", "ems", "--oidc-level", "*:viewer"]
    found = CliRunner().invoke(ems, ["web", "--url", NOBODY_ANSWERS, *asked])
    assert found.exit_code != 0 and "Traceback" not in found.output, found.output
    assert "--oidc-issuer needs the extra oidc" in found.output and "emsworker[oidc]" in found.output
