"""Optional packages: which extra brings which modules, asked for before they are needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from emsworker.core.errors import ExtraMissing

# As in setup.cfg. Whatever is not here is installed always; a test imports every module without any extra.
MODULES: Mapping[str, tuple[str, ...]] = {
    "metrics": ("prometheus_client",),
    "msgpack": ("msgpack",),
    "spark": ("pyspark", "pyarrow"),
    "yaml": ("yaml",),
    "zstd": ("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd",),
}


def hint_if_missing(extra: object) -> str | None:
    """Return how to install an extra; None if it is installed, or if there is no extra of that name."""
    modules = MODULES.get(extra, ()) if isinstance(extra, str) else ()
    missing = next((module for module in modules if not _is_installed(module)), None)
    if missing is None:
        return None
    return f"{missing} is not installed; run: pip install 'emsworker[{extra}]'"


def require(extra: str, what: str) -> None:
    """Refuse to go on without an extra.

    Args:
        extra: its name.
        what: needs it, for the error.

    Raises:
        ExtraMissing: with the command that installs it.
    """
    if hint := hint_if_missing(extra):
        raise ExtraMissing(f"{what} needs the extra {extra}: {hint}")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # the package around it is missing, or somebody has switched it off
        return False
