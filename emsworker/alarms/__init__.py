"""Alarms: the leading beat measures groups by the rules of ``ems alarms``, and notifies receivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.alarms.trial import send_test as send_test
else:
    __getattr__ = lazy_names(__name__, {"emsworker.alarms.trial": "send_test"})

__all__ = ["send_test"]
