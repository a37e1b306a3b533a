"""Puts the files that a checkout has beside the package into the wheel, in `tidemark/checkout`."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.egg_info import egg_info

BESIDE = (
    "jobs/*.py",
    "jobs/topologies/*.toml",
    "jobs/topologies/tests/*.toml",
    "dags/*.py",
    "dags/.airflowignore",
    "dags/examples/*.py",
    "expectations/*.json",
    "expectations/*.toml",
    "docker/ivy*.xml",
    "docker/jars*.sha256",
    "docker/spark-defaults.conf",
    "docker/archive_classes.py",
)
"""The same files are listed in MANIFEST.in, for the archive of the source."""


class BuildWithCheckout(build_py):
    """Copies these files, too; an installation that links to the checkout finds them there."""

    def run(self) -> None:
        """Copies the package and the files beside it."""
        super().run()
        if self.editable_mode:
            return
        for file in [file for pattern in BESIDE for file in sorted(Path().glob(pattern))]:
            target = Path(self.build_lib) / "tidemark" / "checkout" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(target))


class InfoBesideThePath(egg_info):
    """Writes metadata out of `jobs/`, where Python would find the package a second time."""

    def initialize_options(self) -> None:
        """Sets the folder."""
        super().initialize_options()
        self.egg_base = "build"
        Path(self.egg_base).mkdir(exist_ok=True)


# The image of docker/ is made without this page.
README = Path("README.md")
setup(
    cmdclass={"build_py": BuildWithCheckout, "egg_info": InfoBesideThePath},
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
)
