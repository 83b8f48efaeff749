"""Entry point of ``python -m emsworker.spark.jobs NAME`` and of ``spark-submit``: runs ``ems pipeline NAME``."""

import sys
from importlib import import_module

if __name__ == "__main__":
    import_module("emsworker.cli.main").main(["pipeline", *sys.argv[1:]])
