"""Lists the packages; everything else is in setup.cfg, which cannot add a folder to those that it finds."""

from setuptools import find_packages, setup

library = find_packages(include=["emsworker", "emsworker.*"])
# cli/ is installed as emsworker.cli: a package called "cli" would belong to everybody.
commands = [f"emsworker.{name}" for name in find_packages(include=["cli", "cli.*"])]
# Spark looks for data sources in packages of this kind of name.
spark = ["pyspark_ems"]

setup(packages=library + commands + spark)
