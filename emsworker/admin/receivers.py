"""Delivers an alarm to a webhook or to a program."""

from __future__ import annotations

import shlex
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Container
from http.client import HTTPException
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from emsworker.core.errors import DeliveryFailed
from emsworker.core.url import redact


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes redirects errors: Python would follow them with a GET, and without the body."""

    def redirect_request(self, *_: object) -> None:
        return None


_open = urllib.request.build_opener(_NoRedirects).open
_WEBHOOK_S, _COMMAND_S = 5.0, 20.0
_TRIES = 3
LONGEST_S = 60.0  # a delivery takes less


def deliver(target: str, address: str, body: str, allowed: Container[str]) -> None:
    """Deliver an alarm to a receiver; a webhook is tried a few times with growing pauses.

    Args:
        target: ``webhook`` or ``command``.
        address: the URL, or the program with its arguments.
        body: JSON.
        allowed: the programs that may be run here.

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
    waits(_post, address, body)


def _request(url: str, body: str) -> urllib.request.Request:
    """Build the request; user and password of the address are sent as HTTP basic authorization."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json"}
    if at:
        headers["Authorization"] = f"Basic {b64encode(unquote_to_bytes(user)).decode()}"
    return urllib.request.Request(urlunsplit(parts._replace(netloc=host)), body.encode(), headers, method="POST")


def _post(url: str, body: str) -> None:
    request = _request(url, body)
    try:
        with _open(request, timeout=_WEBHOOK_S):
            return
    except urllib.error.HTTPError as error:
        with error:
            raise DeliveryFailed(f"the webhook answered {error.code} {error.reason}") from None
    except (HTTPException, ValueError) as error:  # their texts may repeat the address
        raise DeliveryFailed(f"the webhook gave no valid answer ({type(error).__name__})") from None
    except OSError as error:
        raise DeliveryFailed(f"the webhook could not be reached: {getattr(error, 'reason', error)}") from None


def _run(command: str, body: str, allowed: Container[str]) -> None:
    words = shlex.split(command)
    if words[0] not in allowed:
        raise DeliveryFailed(
            f"the program {words[0]!r} may not be run by alarms on this machine; add it to the setting alarm_commands"
        )
    try:
        done = subprocess.run(
            words,
            input=body.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeliveryFailed(f"the program {words[0]!r} ran longer than {_COMMAND_S:g} s and was killed") from None
    except OSError as error:
        raise DeliveryFailed(f"the program {words[0]!r} cannot be run: {error.strerror}") from None
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or [""]
        raise DeliveryFailed(f"the program {words[0]!r} ended with {done.returncode}: {redact(last[0])[:200]}")
