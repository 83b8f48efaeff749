"""TLS to MySQL: maps the options of a URL to settings of the driver, and the driver's errors to ours."""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from typing import Any

from pymysql.connections import Connection
from pymysql.err import OperationalError

from emsworker.core.errors import ConfigError, Problem, TlsError
from emsworker.core.process.forks import fork_blocked

_NO_TLS = 2026


@functools.cache
def trusting_context() -> ssl.SSLContext:
    """Return a context that encrypts and checks no certificate; connections share it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# A thread in a TLS handshake may hold OpenSSL's own lock in a context: a forked child makes another context.
os.register_at_fork(after_in_child=trusting_context.cache_clear)


def tls_context(options: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS settings of a connection that must be encrypted; ``None`` if it need not be.

    Raises:
        ConfigError: a file cannot be read.
    """
    mode = mode_of(options)
    if mode in ("disabled", "preferred"):
        return None
    with fork_blocked:
        return _checking_context(mode, options)


def _checking_context(mode: str, options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ssl_ca"))
        if "ssl_cert" in options:
            context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    except OSError as error:  # includes ssl's own errors
        files = ", ".join(f"{name}={options[name]}" for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options)
        raise ConfigError([Problem("url", files, f"its certificates cannot be read: {error}")]) from None
    # Certificates that MySQL creates for itself fail the stricter checks of Python 3.13.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode == "verify_identity"
    context.verify_mode = ssl.CERT_NONE if mode == "required" else ssl.CERT_REQUIRED
    return context


def mode_of(options: Mapping[str, str]) -> str:
    """Return the TLS mode of a URL; one that names a CA or a certificate requires TLS by default."""
    default = "verify_identity" if "ssl_ca" in options else "required" if "ssl_cert" in options else "preferred"
    return options.get("ssl_mode", default)


def check_encrypted(connection: Connection[Any]) -> None:
    """Reject a connection that a driver has opened without the TLS that was required."""
    if not isinstance(getattr(connection, "_sock", None), ssl.SSLSocket):
        connection._force_close()  # type: ignore[attr-defined]
        raise OperationalError(_NO_TLS, "the connection is not encrypted")


def tls_error(error: Exception, host: str) -> TlsError | None:
    """Translate a connection error if it is about TLS and a retry would not help; otherwise ``None``."""
    cause = getattr(error, "original_exception", error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return TlsError(
            f"the certificate of MySQL on {host} is not trusted: {cause.verify_message}; "
            "ssl_ca must name the CA that signed it, and the address the host that it was made for"
        )
    if error.args and error.args[0] == _NO_TLS:
        return TlsError(
            f"MySQL on {host} offers no TLS, which the address asks for; nothing was sent to it "
            "(turn TLS on there, or find out who is in between)"
        )
    return None
