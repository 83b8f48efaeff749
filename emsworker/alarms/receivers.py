"""Delivers an alarm to a webhook, Slack, Alertmanager or a program, and pings a dead-man's switch."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shlex
import subprocess
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Container
from datetime import datetime, timedelta
from http.client import HTTPException
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from emsworker.extending.errors import DeliveryFailed
from emsworker.extending.processes import open_scratch
from emsworker.extending.settings import redact


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors: Python would follow them with a GET, and without the body."""

    def redirect_request(self, *_: object) -> None:
        return None


_open = urllib.request.build_opener(_NoRedirects).open
_WEBHOOK_S, _COMMAND_S = 5.0, 20.0
_TRIES = 3
_SAID_BYTES = 8192
_NAMES = {"webhook": "the webhook", "slack": "Slack", "alertmanager": "Alertmanager"}
_ALERT_REPEATS, _ALERT_S = 3, 86400.0
LONGEST_S = 60.0  # a delivery takes less


def deliver(target: str, address: str, body: str, allowed: Container[str], secret: str | None = None) -> None:
    """Deliver an alarm to a receiver; a URL is tried a few times with growing pauses.

    Args:
        target: ``webhook``, ``slack``, ``alertmanager`` or ``command``.
        address: the URL, or the program with its arguments.
        body: the notification as JSON.
        allowed: the programs that may be run here.
        secret: signs what a ``webhook`` gets; see :func:`sign`.

    Raises:
        DeliveryFailed: it could not be delivered; without the address, which may hold a secret.
    """
    if target == "command":
        _run(address, body, allowed)
        return
    waits = Retrying(
        retry=retry_if_exception_type(DeliveryFailed),
        stop=stop_after_attempt(_TRIES),
        wait=wait_random_exponential(multiplier=0.3, max=3.0),
        reraise=True,
    )
    if target == "alertmanager":
        address = f"{address.rstrip('/')}/api/v2/alerts"
    text = {"slack": _for_slack, "alertmanager": _for_alertmanager}.get(target, str)(body)
    waits(_post, address, text, secret if target == "webhook" else None, _NAMES[target])


def sign(secret: str, timestamp: int, body: str) -> str:
    """Return the value of the header ``X-EMS-Signature``: ``v1=`` and the HMAC-SHA256, in hexadecimal, of
    ``timestamp.body``, where the timestamp is the header ``X-EMS-Timestamp``.
    """  # noqa: D205 - one sentence
    signed = f"{timestamp}.{body}".encode()
    return f"v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


def _for_slack(body: str) -> str:
    """Return the message of an incoming webhook; the three characters that Slack reads as its own are escaped."""
    text = str(json.loads(body)["text"])
    for character, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, escape)
    return json.dumps({"text": text})


def _for_alertmanager(body: str) -> str:
    """Return the list of alerts that Alertmanager's API takes.

    It resolves an alert at its end. One that fires ends after some repeats, or after a day if it is not repeated.
    """
    alarm = json.loads(body)
    labels = {name: str(alarm[name]) for name in ("metric", "topic", "group") if alarm[name]}
    if alarm["event"] == "test":
        labels["event"] = "test"  # or it would resolve an alert that fires
    at = datetime.fromisoformat(alarm["at"])
    lasts_s = _ALERT_REPEATS * float(alarm.get("repeat_s", 0)) or _ALERT_S
    ends_at = at + timedelta(seconds=lasts_s) if alarm["event"] == "firing" else at
    alert = {
        "labels": {"alertname": alarm["rule"], **labels},
        "annotations": {"summary": alarm["text"], "value": str(alarm["value"]), "id": alarm["id"]},
        "startsAt": alarm["since"],
        "endsAt": ends_at.isoformat(),
    }
    return json.dumps([alert])


def _request(url: str, body: str, secret: str | None) -> urllib.request.Request:
    """Build the request; user and password of the address are sent as HTTP basic authorization."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json"}
    if at:
        headers["Authorization"] = f"Basic {b64encode(unquote_to_bytes(user)).decode()}"
    if secret is not None:
        now = int(time.time())
        headers |= {"X-EMS-Timestamp": str(now), "X-EMS-Signature": sign(secret, now, body)}
    return urllib.request.Request(urlunsplit(parts._replace(netloc=host)), body.encode(), headers, method="POST")


def _post(url: str, body: str, secret: str | None, what: str) -> None:
    _send(_request(url, body, secret), what)


def _send(request: urllib.request.Request, what: str) -> None:
    try:
        with _open(request, timeout=_WEBHOOK_S):
            return
    except urllib.error.HTTPError as error:
        with error:
            raise DeliveryFailed(f"{what} answered {error.code} {error.reason}") from None
    except (HTTPException, ValueError) as error:  # their texts may repeat the address
        raise DeliveryFailed(f"{what} gave no valid answer ({type(error).__name__})") from None
    except OSError as error:
        raise DeliveryFailed(f"{what} could not be reached: {getattr(error, 'reason', error)}") from None


def _run(command: str, body: str, allowed: Container[str]) -> None:
    words = shlex.split(command)
    if words[0] not in allowed:
        raise DeliveryFailed(
            f"the program {words[0]!r} may not be run by alarms on this machine; add it to the setting alarm_commands"
        )
    # What the program leaves running may hold a pipe open for ever; a file has an end when the program has ended.
    with open_scratch() as said:
        try:
            done = subprocess.run(
                words, input=body.encode(), stdout=subprocess.DEVNULL, stderr=said, timeout=_COMMAND_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeliveryFailed(f"the program {words[0]!r} ran longer than {_COMMAND_S:g} s and was killed") from None
        except OSError as error:
            raise DeliveryFailed(f"the program {words[0]!r} cannot be run: {error.strerror}") from None
        said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID_BYTES))
        last = said.read().decode(errors="replace").strip().splitlines()[-1:] or [""]
    if done.returncode:
        raise DeliveryFailed(f"the program {words[0]!r} ended with {done.returncode}: {redact(last[0])[:200]}")


def ping(url: str) -> None:
    """Ask a URL, once.

    Raises:
        DeliveryFailed: it did not answer with 2xx.
    """
    request = _request(url, "", None)
    request.method, request.data = "GET", None
    _send(request, "the dead-man's switch")
