"""Lists the packages; everything else is in setup.cfg, which cannot add a folder to those that it finds."""

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

library = find_packages(include=["emsworker", "emsworker.*"])
# cli/ is installed as emsworker.cli: a package called "cli" would belong to everybody.
commands = [f"emsworker.{name}" for name in find_packages(include=["cli", "cli.*"])]
# Spark looks for data sources in packages of this kind of name.
spark = ["pyspark_ems"]
# Installed beside the packages: .pth files, which Python reads at its start in this place only, and their modules.
beside = [path for path in Path("kombu_ems").glob("*.*") if path.suffix in (".pth", ".py")]


class BuildPackages(build_py):
    """Builds into an empty folder: setuptools keeps what an earlier build left there, deleted modules as well.

    An editable install gets Spark's package as a real folder: Spark looks for it in the folders of ``sys.path``, and
    does not ask the import hook that finds the other packages. What stands beside the packages is copied, too.
    """

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        installed = Path(self.build_lib)
        if self.editable_mode:
            installed = Path(self.get_finalized_command("install").install_lib)
            for name in spark:
                shutil.copytree(name, installed / name, ignore=shutil.ignore_patterns("__pycache__"))
        installed.mkdir(parents=True, exist_ok=True)
        for path in beside:
            shutil.copy(path, installed)


setup(packages=library + commands + spark, cmdclass={"build_py": BuildPackages})
