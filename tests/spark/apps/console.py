"""Runs command lines one after another in one process: each start of Java takes seconds.

Usage: console.py LINE... Prints, as JSON, the exit code and the output of each.
"""

import json
import shlex
import sys
import traceback
from pathlib import Path

from click.testing import CliRunner

from emsworker.cli.main import ems


def run(line: str) -> tuple[int, str]:
    """Run a line as a shell would that knows ``<``."""
    words = shlex.split(line)
    source = Path(words[-1]).read_text() if "<" in words else None
    done = CliRunner().invoke(ems, words[1 : words.index("<")] if "<" in words else words[1:], input=source)
    crash = "" if done.exc_info is None else "".join(traceback.format_exception(*done.exc_info))
    return done.exit_code, done.output + (crash if done.exit_code else "")


if __name__ == "__main__":
    print(json.dumps([run(line) for line in sys.argv[1:]]), file=sys.__stdout__)
