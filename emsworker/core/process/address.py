"""Name of the setting that the stream's address comes from, for errors about it."""

from __future__ import annotations

import os

VARIABLE = "EMS_URL_NAME"
"""Variable in which a framework's command names its own setting to the ``ems`` command that it becomes."""
_names: list[str] = []


def name_address(name: str) -> None:
    """Set the name for this process, such as ``DATABASES['default']``. The first call wins."""
    if not _names:
        _names.append(name)


def address_name() -> str:
    """Return the name of the setting: ``EMS_URL`` if nobody has given another."""
    return _names[0] if _names else os.environ.get(VARIABLE) or "EMS_URL"


def address_place() -> str:
    """Return where a command's address is given: an option or a variable, or the setting of a framework."""
    name = address_name()
    return "--url or EMS_URL" if name == "EMS_URL" else name
