"""The declaration of an extension, and what its parts are made of: rights, services of the beat, extras."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names as lazy_names

if TYPE_CHECKING:
    from emsworker.beat.expiry import pause_s as pause_s
    from emsworker.beat.server import WatchLocks as WatchLocks
    from emsworker.beat.services import LedStream as LedStream
    from emsworker.beat.services import Service as Service
    from emsworker.core.extension import Command as Command
    from emsworker.core.extension import DefaultStream as DefaultStream
    from emsworker.core.extension import Extension as Extension
    from emsworker.core.extension import Measure as Measure
    from emsworker.core.extension import extensions as extensions
    from emsworker.core.extension import load as load
    from emsworker.core.extension import measures as measures
    from emsworker.core.extension import parts as parts
    from emsworker.core.extras import hint_if_missing as hint_if_missing
    from emsworker.core.extras import require as require
    from emsworker.store.engine.rights import read_grid as read_grid
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.beat.expiry": "pause_s",
            "emsworker.beat.server": "WatchLocks",
            "emsworker.beat.services": "LedStream Service",
            "emsworker.core.extension": "Command DefaultStream Extension Measure extensions load measures parts",
            "emsworker.core.extras": "hint_if_missing require",
            "emsworker.store.engine.rights": "read_grid",
        },
    )
