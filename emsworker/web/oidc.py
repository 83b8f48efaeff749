"""Sign-in by OpenID Connect: the authorization code flow with PKCE, and the signed cookie of a session."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import httpx2
from authlib.integrations.httpx_client import AsyncOAuth2Client, OAuthError
from itsdangerous import BadData, URLSafeTimedSerializer
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.processes import ticks
from emsworker.web.access import (
    LEVELS,
    Level,
    Visitor,
    check_level,
    comes_from_here,
    is_loopback,
    public_path,
    web_address,
)
from emsworker.web.page import environment, is_own_path

_log = logging.getLogger(__name__)

_CALLBACK = "/oidc/callback"
# By public keys only: with a shared one, anybody who can read the public key set could sign.
_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_SCOPES = ("openid", "profile", "email")
_SESSION_S, _SIGN_IN_S, _DISCOVERY_S = 8 * 3600, 600, 600.0
_TIMEOUT_S, _LEEWAY_S = 5.0, 30
_SHORTEST_KEY = 32


class _Refused(Exception):
    """A sign-in that must not succeed; the text is shown."""


class _Unreachable(Exception):
    """The provider does not answer as it should; the text is shown."""


class OpenIdUsers:
    """Rule of access for people who sign in at an OpenID Connect provider.

    The ID token is verified: its signature by the provider's published keys, issuer, audience, expiry and nonce. Only
    the name and the level are kept, in a signed cookie that is valid for 8 hours; tokens are thrown away.

    Args:
        issuer: the provider's address, exactly as its discovery document has it.
        client_id: the dashboard's name at the provider.
        public_url: the address of the dashboard as browsers see it; the provider has to know
            ``<public_url>/oidc/callback`` as a redirect address.
        levels: ``CLAIM=VALUE`` of the ID token to level, like ``groups=ops``; the value must be equal, or one of the
            claim's list. ``*`` for everybody who can sign in. The highest level counts; without one, nobody is let in.
        secret: the client's secret; ``None`` for a client without one.
        scopes: asked for besides ``openid``, ``profile`` and ``email``.
        session_key: signs the cookies, 32 characters or more. Several processes that serve one dashboard need the same
            one. By default it is a random one, so everybody signs in again after a restart.

    Raises:
        ConfigError: an address, a level or the key is wrong.

    The flow is that of OpenID Connect Core 1.0, section 3.1, with PKCE (RFC 7636).
    """

    challenge = None
    sign_in, sign_out = "/oidc/login", "/oidc/logout"

    def __init__(
        self,
        issuer: str,
        client_id: str,
        *,
        public_url: str,
        levels: Mapping[str, Level],
        secret: str | None = None,
        scopes: Collection[str] = (),
        session_key: str | None = None,
    ) -> None:
        _check_provider(issuer, client_id, session_key)
        path = public_path(public_url)
        self._levels = [_read_level(key, level) for key, level in levels.items()]
        if not self._levels:
            raise ConfigError([Problem("levels", "none", "give at least one, like groups=ops: operator")])
        self._issuer, self._client_id, self._secret = issuer, client_id, secret
        self._scope = " ".join(dict.fromkeys((*_SCOPES, *scopes)))
        self._callback = public_url.rstrip("/") + _CALLBACK
        # A cookie holds for this configuration only: who changes the levels ends the sessions.
        identity = repr((issuer, client_id, public_url, sorted(self._levels)))
        self._cookie = f"ems_{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
        self._path, self._secure = path, public_url.lower().startswith("https:")
        key = session_key or secrets.token_urlsafe(48)
        self._sessions, self._sign_ins = (_serializer(key, f"{use} {identity}") for use in ("session", "sign-in"))
        self._tls = httpx2.create_ssl_context()  # takes long, and each client would make its own
        self._found: tuple[float, Mapping[str, Any]] | None = None

    def __call__(self, request: Request) -> Visitor | None:
        """Admit who has signed in."""
        try:
            name, level = self._sessions.loads(request.cookies.get(self._cookie, ""), max_age=_SESSION_S)
        except BadData:
            return None
        return Visitor(name, check_level("level", level))

    def endpoints(self) -> Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Return the method, path and function of each page of the sign-in."""
        return (
            ("GET", self.sign_in, self._begin),
            ("GET", _CALLBACK, self._finish),
            ("POST", self.sign_out, self._end),
        )

    # -- pages ---------------------------------------------------------------------------------------------------------

    async def _begin(self, request: Request) -> Response:
        """Send the browser to the provider."""
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        try:
            async with self._client() as client:
                provider = await self._discover(client)
                target, _ = client.create_authorization_url(
                    provider["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
                )
        except (_Refused, _Unreachable) as error:
            return self._failed(request, error)
        back = request.query_params.get("back", "")
        kept = self._sign_ins.dumps([state, nonce, verifier, back if is_own_path(_root(request), back) else ""])
        response = RedirectResponse(target, 303)
        self._set(response, self._name_of(state), kept, _SIGN_IN_S, self._path + _CALLBACK)
        return response

    async def _finish(self, request: Request) -> Response:
        """Take the provider's answer and begin a session."""
        state = request.query_params.get("state", "")
        cookie = self._name_of(state)
        try:
            nonce, verifier, back = self._begun(request.cookies.get(cookie, ""), state)
            claims = await self._claims(request, nonce, verifier)
            name, level = _name(claims), self._level(claims)
            if level is None:
                raise _Refused(f"You are {name}, but nobody has given you access to this dashboard.")
        except (_Refused, _Unreachable) as error:
            response = self._failed(request, error)
        else:
            _log.info("%s signed in as %s", name, level)
            response = RedirectResponse(back or f"{_root(request)}/", 303)
            self._set(response, self._cookie, self._sessions.dumps([name, level]), _SESSION_S, self._path or "/")
        if cookie in request.cookies:
            self._set(response, cookie, "", 0, self._path + _CALLBACK)
        return response

    async def _end(self, request: Request) -> Response:
        """End the session here, and offer to end it at the provider as well."""
        if not comes_from_here(request):
            return self._page(request, 403, "Refused", "This request did not come from a page of the dashboard.")
        try:
            async with self._client() as client:
                elsewhere = (await self._discover(client)).get("end_session_endpoint")
        except (_Refused, _Unreachable):
            elsewhere = None
        if elsewhere is not None:
            elsewhere += ("&" if "?" in elsewhere else "?") + urlencode({"client_id": self._client_id})
        text = "Your session at the provider may still be open: then nobody asks for a password at the next sign-in."
        response = self._page(request, 200, "You are signed out", text, elsewhere)
        self._set(response, self._cookie, "", 0, self._path or "/")
        return response

    def _failed(self, request: Request, error: _Refused | _Unreachable) -> Response:
        _log.warning("a sign-in failed: %s", error)
        if isinstance(error, _Refused):
            return self._page(request, 403, "You are not signed in", str(error))
        return self._page(request, 503, "The provider cannot be used", str(error))

    def _page(self, request: Request, status: int, title: str, text: str, elsewhere: str | None = None) -> Response:
        root = _root(request)
        values = {"root": root, "sign_in": root + self.sign_in, "elsewhere": elsewhere}
        page = environment().get_template("signin.html").render(title=title, text=text, code=status, **values)
        return HTMLResponse(page, status)

    # -- cookies -------------------------------------------------------------------------------------------------------

    def _name_of(self, state: str) -> str:
        """Return the cookie of one sign-in: several tabs may sign in at the same time."""
        return f"{self._cookie}_{hashlib.sha256(state.encode(errors='replace')).hexdigest()[:12]}"

    def _begun(self, cookie: str, state: str) -> tuple[str, str, str]:
        """Return nonce, verifier and page of the sign-in that this browser has begun."""
        try:
            known, nonce, verifier, back = self._sign_ins.loads(cookie, max_age=_SIGN_IN_S)
        except BadData:
            raise _Refused("This browser has not begun this sign-in, or it took longer than 10 minutes.") from None
        if not hmac.compare_digest(known.encode(), state.encode(errors="replace")):
            raise _Refused("This browser has begun another sign-in.")
        return nonce, verifier, back

    def _set(self, response: Response, name: str, value: str, age_s: int, path: str) -> None:
        response.set_cookie(name, value, age_s, path=path, secure=self._secure, httponly=True, samesite="lax")

    # -- the provider --------------------------------------------------------------------------------------------------

    def _client(self, method: str | None = None) -> Any:
        return AsyncOAuth2Client(
            self._client_id,
            self._secret,
            token_endpoint_auth_method=method,
            scope=self._scope,
            redirect_uri=self._callback,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
            verify=self._tls,
        )

    async def _discover(self, client: Any) -> Mapping[str, Any]:
        """Return the discovery document, at most ten minutes old."""
        if self._found is not None and ticks() - self._found[0] < _DISCOVERY_S:
            return self._found[1]
        found = await self._read(client, self._issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != self._issuer:
            raise _Refused(f"The provider at {self._issuer} names another issuer: {found.get('issuer')}.")
        for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
            if not _is_private(str(found.get(name, ""))):
                raise _Unreachable(f"{name} of the provider at {self._issuer} is missing, or is not an https address.")
        if not _is_private(str(found.get("end_session_endpoint", ""))):
            found.pop("end_session_endpoint", None)
        self._found = ticks(), found
        return found

    async def _read(self, client: Any, url: str) -> dict[str, Any]:
        try:
            found = (await client.request("GET", url, withhold_token=True)).raise_for_status().json()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise _Unreachable(f"{url} cannot be read: {type(error).__name__}.") from None
        if not isinstance(found, dict):
            raise _Unreachable(f"{url} is not a JSON object.")
        return found

    async def _claims(self, request: Request, nonce: str, verifier: str) -> Mapping[str, Any]:
        """Exchange the code of the answer, and return the verified claims of the ID token."""
        asked = request.query_params
        if asked.get("iss", self._issuer) != self._issuer:  # RFC 9207: another provider's answer
            raise _Refused("The answer came from another issuer.")
        if "error" in asked or not asked.get("code"):
            raise _Refused(f"The provider answered: {_code(asked.get('error'))}.")
        async with self._client() as client:
            provider = await self._discover(client)
            keys = await self._read(client, provider["jwks_uri"])
        methods = provider.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        post = self._secret and "client_secret_basic" not in methods and "client_secret_post" in methods
        async with self._client("client_secret_post" if post else None) as client:
            try:
                token = await client.fetch_token(
                    provider["token_endpoint"],
                    grant_type="authorization_code",
                    code=asked["code"],
                    code_verifier=verifier,
                )
            except OAuthError as error:
                raise _Refused(f"The provider refused the code: {_code(error.error)}.") from None
            except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
                raise _Unreachable(f"The provider's token endpoint failed: {type(error).__name__}.") from None
        return self._verified(token.get("id_token"), keys, nonce)

    def _verified(self, token: object, keys: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        if not isinstance(token, str):
            raise _Refused("The provider sent no ID token.")
        rules = jwt.JWTClaimsRegistry(
            leeway=_LEEWAY_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            claims = jwt.decode(token, KeySet.import_key_set(keys), _ALGORITHMS).claims  # type: ignore[arg-type]
            rules.validate(claims)
        except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _Refused(f"The provider's ID token is not valid: {_reason(error)}.") from None
        others = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", None if others else self._client_id) != self._client_id:
            raise _Refused("The provider's ID token was made for another client.")
        return claims

    def _level(self, claims: Mapping[str, Any]) -> Level | None:
        levels = [level for claim, value, level in self._levels if claim == "*" or value in _values(claims, claim)]
        return max(levels, key=LEVELS.index, default=None)


def _check_provider(issuer: str, client_id: str, session_key: str | None) -> None:
    problems = []
    if not _is_private(issuer) or "?" in issuer or "#" in issuer or "@" in issuer:
        problems.append(Problem("issuer", repr(issuer), "must be an https address (http on this machine only)"))
    if not client_id.strip():
        problems.append(Problem("client id", repr(client_id), "must be the one that the provider has given"))
    if session_key is not None and len(session_key) < _SHORTEST_KEY:
        problems.append(Problem("session key", "***", f"must have {_SHORTEST_KEY} characters or more"))
    if problems:
        raise ConfigError(problems)


def _read_level(key: str, level: str) -> tuple[str, str, Level]:
    claim, equals, value = key.partition("=")
    if key != "*" and not (claim and equals and value):
        raise ConfigError([Problem("level of", repr(key), "must be CLAIM=VALUE, or * for everybody")])
    return claim, value, check_level(f"level of {key}", level)


def _is_private(url: str) -> bool:
    """True if nobody can listen to what is sent to an address."""
    parts = web_address(url)
    return parts is not None and (parts.scheme == "https" or is_loopback(parts.hostname or ""))


def _serializer(key: str, salt: str) -> URLSafeTimedSerializer:
    how = {"digest_method": hashlib.sha256, "key_derivation": "hmac"}
    return URLSafeTimedSerializer(key, salt=salt.encode(), signer_kwargs=how)


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _values(claims: Mapping[str, Any], claim: str) -> list[object]:
    """Return the values of a claim; an e-mail address that was not verified has none: anybody may claim it."""
    if claim == "email" and claims.get("email_verified") is not True:
        return []
    value = claims.get(claim)
    return value if isinstance(value, list) else [value]


def _name(claims: Mapping[str, Any]) -> str:
    """Return the name for the audit; one that people may choose for themselves is followed by the provider's own."""
    named = {
        claim: "".join(each if each.isprintable() else "?" for each in value.strip())
        for claim in ("email", "preferred_username", "sub")
        for value in _values(claims, claim)[:1]
        if isinstance(value, str) and value.strip()
    }
    if "email" in named:
        return named["email"][:190]
    if "preferred_username" in named:
        subject = f" ({named['sub']})" if "sub" in named else ""
        return named["preferred_username"][: 190 - len(subject)] + subject
    if "sub" in named:
        return named["sub"][:190]
    raise _Refused("The provider's ID token names nobody.")


def _code(error: object) -> str:
    """Return the code of an OAuth error, if it is one: the address may hold any text."""
    return error if isinstance(error, str) and re.fullmatch(r"[a-z_]{1,60}", error) else "neither a code nor an error"


def _reason(error: Exception) -> str:
    """Return the reason without values of the token."""
    if isinstance(error, JoseError):
        return f"{error.error} {getattr(error, 'claim', '')}".strip()
    return "it, or the key set, cannot be read"
