"""``python -m emsworker`` is ``ems``."""

from importlib import import_module

import_module("emsworker.cli.main").main()
