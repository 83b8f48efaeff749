"""Errors as a client sees them: a status, and JSON with a code for programs and a text for people."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from emsworker.extending.settings import redact
from emsworker.extending.values import errors

RETRY_AFTER_S = 1
_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.UnknownTopic, 404, "unknown_topic"),
    (errors.UnknownGroup, 404, "unknown_group"),
    (errors.UnknownName, 404, "unknown"),
    (errors.MessageTooLarge, 413, "too_large"),
    (errors.TopicRuleError, 409, "topic_rule"),
    (errors.RunEnded, 409, "timed_out"),
    (errors.FenceLost, 409, "lost"),
    (errors.LeaseLost, 409, "lost"),
    (errors.NotInHand, 409, "not_in_hand"),
    (errors.ConfigError, 400, "invalid"),
    (errors.InvalidName, 400, "invalid"),
    (errors.InvalidPriority, 400, "invalid"),
    (errors.EncodeError, 400, "invalid"),
    (errors.WrongArguments, 400, "invalid"),
    (errors.AccessDenied, 403, "refused_by_database"),
    (errors.StoreUnavailable, 503, "unavailable"),
    (errors.TlsError, 503, "unavailable"),
    (errors.SchemaMissing, 503, "unavailable"),
    (errors.ServerUnsupported, 503, "unavailable"),
    (errors.TopicMoved, 503, "moved"),
)


class HttpFault(Exception):
    """An answer that says why nothing was done.

    Args:
        status: of HTTP.
        code: for programs.
        text: for people.
        more: members of the answer beside the error.
    """

    def __init__(self, status: int, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.more = status, code, text, more

    def response(self) -> Response:
        """Return the answer."""
        headers = {"cache-control": "no-store"}
        if self.status in (429, 503):
            headers["retry-after"] = str(RETRY_AFTER_S)
        if self.status == 401:
            headers["www-authenticate"] = 'Bearer realm="ems"'
        content = {"error": {"code": self.code, "message": self.text}, **self.more}
        return Response(json.dumps(content), self.status, headers, media_type="application/json")


def fault_of(error: errors.EmsError, otherwise: tuple[int, str] = (500, "failed")) -> HttpFault:
    """Return the answer for an error of EMS.

    Args:
        otherwise: status and code of an error that is none of those that are known here.
    """
    text = redact(str(error)).encode(errors="replace").decode()
    for kind, status, code in _KINDS:
        if isinstance(error, kind):
            return HttpFault(status, code, text)
    return HttpFault(*otherwise, text)
