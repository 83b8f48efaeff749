"""The parts of commands: options, the stream that they work on, output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.console.cells import Row as Row
    from emsworker.console.completing import complete_groups as complete_groups
    from emsworker.console.completing import complete_topics as complete_topics
    from emsworker.console.context_keys import TRACEBACK as TRACEBACK
    from emsworker.console.context_keys import URL as URL
    from emsworker.console.dialogue import as_far_as_allowed as as_far_as_allowed
    from emsworker.console.dialogue import confirm as confirm
    from emsworker.console.dialogue import delete_named as delete_named
    from emsworker.console.dialogue import first_of as first_of
    from emsworker.console.dialogue import progress as progress
    from emsworker.console.dialogue import say_more as say_more
    from emsworker.console.failures import CommandFailure as CommandFailure
    from emsworker.console.failures import Errors as Errors
    from emsworker.console.failures import WrongUsage as WrongUsage
    from emsworker.console.failures import each_of as each_of
    from emsworker.console.failures import end_with as end_with
    from emsworker.console.http import listen as listen
    from emsworker.console.http import read_address as read_address
    from emsworker.console.options import COUNT as COUNT
    from emsworker.console.options import DURATION as DURATION
    from emsworker.console.options import changes_of as changes_of
    from emsworker.console.options import common_options as common_options
    from emsworker.console.options import duration_option as duration_option
    from emsworker.console.options import json_option as json_option
    from emsworker.console.options import most_option as most_option
    from emsworker.console.options import read_duration as read_duration
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
    from emsworker.console.streams import open_databases as open_databases
    from emsworker.console.streams import open_single as open_single
    from emsworker.console.streams import open_stream as open_stream
    from emsworker.console.streams import open_wanted as open_wanted
    from emsworker.console.terminal import make_table as make_table
    from emsworker.console.terminal import open_console as open_console
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.console.cells": "Row",
            "emsworker.console.completing": "complete_groups complete_topics",
            "emsworker.console.context_keys": "TRACEBACK URL",
            "emsworker.console.dialogue": "as_far_as_allowed confirm delete_named first_of progress say_more",
            "emsworker.console.failures": "CommandFailure Errors WrongUsage each_of end_with",
            "emsworker.console.http": "listen read_address",
            "emsworker.console.options": "COUNT DURATION changes_of common_options duration_option json_option "
            "most_option read_duration read_moment stream_options together "
            "wide_option yes_option",
            "emsworker.console.output": "draws_tables print_done print_gap print_json print_record print_rows",
            "emsworker.console.streams": "OpenStream open_databases open_single open_stream open_wanted",
            "emsworker.console.terminal": "make_table open_console",
        },
    )
