"""Threads, locks that survive a fork, clocks, and the role and address of a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.core.process import forks as forks
    from emsworker.core.process import runnable as runnable
    from emsworker.core.process.address import VARIABLE as VARIABLE
    from emsworker.core.process.address import name_address as name_address
    from emsworker.core.process.address import name_url as name_url
    from emsworker.core.process.clock import ticks as ticks
    from emsworker.core.process.forks import Lock as Lock
    from emsworker.core.process.forks import after_fork as after_fork
    from emsworker.core.process.forks import fork_blocked as fork_blocked
    from emsworker.core.process.forks import lazy as lazy
    from emsworker.core.process.polling import PollInterval as PollInterval
    from emsworker.core.process.reconnect import until_connected as until_connected
    from emsworker.core.process.role import claim_role as claim_role
    from emsworker.core.process.runnable import Runnable as Runnable
    from emsworker.core.process.runnable import Trouble as Trouble
    from emsworker.core.process.scratch import open_scratch as open_scratch
    from emsworker.core.process.threads import ThreadPool as ThreadPool
    from emsworker.core.process.wake import Wake as Wake
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.core.process": "forks runnable",
            "emsworker.core.process.address": "VARIABLE name_address name_url",
            "emsworker.core.process.clock": "ticks",
            "emsworker.core.process.forks": "Lock after_fork fork_blocked lazy",
            "emsworker.core.process.polling": "PollInterval",
            "emsworker.core.process.reconnect": "until_connected",
            "emsworker.core.process.role": "claim_role",
            "emsworker.core.process.runnable": "Runnable Trouble",
            "emsworker.core.process.scratch": "open_scratch",
            "emsworker.core.process.threads": "ThreadPool",
            "emsworker.core.process.wake": "Wake",
        },
    )
