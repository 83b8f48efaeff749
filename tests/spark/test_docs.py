"""The snippets of the pages about Spark."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.docs.snippets import blocks, needs_spark, pages
from tests.spark.conftest import CONF, spark_environment
from tests.support.streams import Stream


def test_the_snippets_of_the_pages_run_and_print_what_they_say(stream: Stream, tmp_path: Path) -> None:
    """All in one process: each start of Java takes seconds."""
    found = {str(page): blocks(page) for page in pages() if needs_spark(page)}
    assert len(found) >= 4
    expected = {}
    for page, parts in found.items():
        assert {block.language for block in parts} <= {"python", "text", "console", "ini", "yaml"}, page
        texts = [block.text for block in parts if (block.language, block.title) == ("text", "prints")]
        expected[page] = "".join(texts)
    plain = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.apps.pages", *found],
        cwd=tmp_path,
        env=plain
        | spark_environment()
        | {"EMS_URL": stream.url, "PYSPARK_SUBMIT_ARGS": shlex.join([*CONF, "pyspark-shell"])},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == expected
