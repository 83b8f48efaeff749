"""Dashboard of a stream: an ASGI application of Starlette and Jinja2, behind ``ems web`` and mountable in others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emsworker.web.access import Passwords, ProxyUsers, Visitor
    from emsworker.web.oidc import OpenIdUsers
    from emsworker.web.site import ems_web, ems_wsgi

__all__ = ["OpenIdUsers", "Passwords", "ProxyUsers", "Visitor", "ems_web", "ems_wsgi"]

_PLACES = {
    "OpenIdUsers": "oidc",
    "Passwords": "access",
    "ProxyUsers": "access",
    "Visitor": "access",
    "ems_web": "site",
    "ems_wsgi": "site",
}


def __getattr__(name: str) -> object:
    """Import what is used, once the extra is known to be installed."""
    if name not in _PLACES:
        raise AttributeError(name)
    from importlib import import_module

    from emsworker.extending.declaration import require

    require("web", "the dashboard")
    if name == "OpenIdUsers":
        require("oidc", "sign-in by OpenID Connect")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
