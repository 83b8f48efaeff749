"""Runs the snippets of pages, each on an empty stream and in an empty folder, in one session of Spark.

Usage: pages.py PAGE... Prints, as JSON, what each page printed.
"""

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path

from emsworker import Ems
from emsworker.admin import Admin
from tests.docs.snippets import blocks


def printed(page: Path) -> str:
    """What the snippets of a page print."""
    code = "\n".join(block.text for block in blocks(page) if block.language == "python")
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(code, page.name, "exec"), {"__name__": "__main__"})
    return output.getvalue()


def clear() -> None:
    """Nothing is left of the page before."""
    app = Ems("clear")
    admin = Admin(app)
    for topic in admin.topics():
        admin.delete_topic(topic.name, force=True)
    app.close()
    for entry in Path.cwd().iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)


if __name__ == "__main__":
    found = {}
    for name in sys.argv[1:]:
        found[name] = printed(Path(name))
        clear()
    print(json.dumps(found))
