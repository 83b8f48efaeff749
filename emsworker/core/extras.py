"""Optional packages: the modules of each extra, checked before they are needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from emsworker.core.errors import ExtraMissing

# Must match setup.cfg. Modules not listed here are always installed; a test imports every module without any extra.
MODULES: Mapping[str, tuple[str, ...]] = {
    "arrow": ("pyarrow",),
    "celery": ("celery",),
    "django": ("django",),
    "cli": ("rich",),
    "fastapi": ("fastapi",),
    "flask": ("flask",),
    "http": ("starlette", "uvicorn"),
    "iceberg": ("pyiceberg",),
    "metrics": ("prometheus_client",),
    "msgpack": ("msgpack",),
    "oidc": ("authlib", "httpx2", "itsdangerous", "joserfc"),
    "otel": ("opentelemetry.trace",),
    "pandas": ("pandas", "pyarrow"),
    "polars": ("polars", "pyarrow"),
    "pydantic": ("pydantic",),
    "spark": ("pyspark", "pyarrow"),
    "starlette": ("starlette",),
    "web": ("starlette", "jinja2", "uvicorn", "a2wsgi"),
    "yaml": ("yaml",),
    "zstd": ("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",),
}


def hint_if_missing(extra: object) -> str | None:
    """Return the way to install an extra; None if it is installed, or if there is no extra of that name."""
    modules = MODULES.get(extra, ()) if isinstance(extra, str) else ()
    missing = next((module for module in modules if not _is_installed(module)), None)
    if missing is None:
        return None
    return f"{missing} is not installed; run: pip install 'emsworker[{extra}]'"


def require(extra: str, what: str) -> None:
    """Raise an error if an extra is not installed.

    Args:
        extra: the name of the extra.
        what: the feature that needs it, for the error message.

    Raises:
        ExtraMissing: with the command that installs it.
    """
    if hint := hint_if_missing(extra):
        raise ExtraMissing(f"{what} needs the extra {extra}: {hint}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # its parent package is missing, or the module is disabled
        return False
