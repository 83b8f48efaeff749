"""The parts of commands: options, the stream that they work on, output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.console.context_keys import TRACEBACK as TRACEBACK
    from emsworker.console.context_keys import URL as URL
    from emsworker.console.dialogue import as_far_as_allowed as as_far_as_allowed
    from emsworker.console.dialogue import confirm as confirm
    from emsworker.console.dialogue import progress as progress
    from emsworker.console.failures import WrongUsage as WrongUsage
    from emsworker.console.options import COUNT as COUNT
    from emsworker.console.options import common_options as common_options
    from emsworker.console.options import duration_option as duration_option
    from emsworker.console.options import json_option as json_option
    from emsworker.console.options import read_moment as read_moment
    from emsworker.console.options import stream_options as stream_options
    from emsworker.console.options import together as together
    from emsworker.console.options import wide_option as wide_option
    from emsworker.console.options import yes_option as yes_option
    from emsworker.console.output import draws_tables as draws_tables
    from emsworker.console.output import print_done as print_done
    from emsworker.console.output import print_gap as print_gap
    from emsworker.console.output import print_json as print_json
    from emsworker.console.output import print_record as print_record
    from emsworker.console.output import print_rows as print_rows
    from emsworker.console.streams import OpenStream as OpenStream
    from emsworker.console.streams import open_single as open_single
    from emsworker.console.streams import open_stream as open_stream
    from emsworker.console.streams import open_wanted as open_wanted

__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.console.context_keys": "TRACEBACK URL",
        "emsworker.console.dialogue": "as_far_as_allowed confirm progress",
        "emsworker.console.failures": "WrongUsage",
        "emsworker.console.options": "COUNT common_options duration_option json_option read_moment "
        "stream_options together wide_option yes_option",
        "emsworker.console.output": "draws_tables print_done print_gap print_json print_record print_rows",
        "emsworker.console.streams": "OpenStream open_single open_stream open_wanted",
    },
)
