"""Fresh Python environments with the wheel.

Their commands run outside of the checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemark.control.process import without_airflow

PROJECT = Path(__file__).resolve().parents[2]
LOCK = PROJECT / "requirements.lock"
OF_SPARK = {"delta-spark", "pyspark", "pyspark-client"}
"""Packages that have one version for each version of Spark."""
VERSIONS = """
from importlib.metadata import distributions
for each in distributions():
    print(f"{each.name}=={each.version}")
"""
UV = Path(sys.executable).parent / "uv"
INSTALLED_WITHIN_S = 900
ENDS_WITHIN_S = 300


def uv(*arguments: str, folder: Path | None = None) -> None:
    """Runs uv; its output is shown if it fails."""
    command = [str(UV), *arguments]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALLED_WITHIN_S, cwd=folder, env=_outside(), check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _outside() -> dict[str, str]:
    """Returns an environment that names neither the checkout nor its Airflow."""
    env = without_airflow(os.environ)
    # With bytecode Airflow starts four times faster, and a fresh environment has none yet.
    names = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME", "PYSPARK_PYTHON")
    return {name: value for name, value in env.items() if name not in names and not name.startswith("TIDEMARK_")}


def python_of(version: str) -> str:
    """Returns an interpreter of *version*; skips the test if there is none."""
    of_pyenv = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")))
    by_uv = subprocess.run([str(UV), "python", "find", version], capture_output=True, text=True, check=False)
    for candidate in filter(None, [shutil.which(f"python{version}"), *of_pyenv, by_uv.stdout.strip()]):
        if subprocess.run([candidate, "--version"], capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip(f"not run: no Python {version} is installed")


@dataclass(frozen=True)
class FreshEnvironment:
    """An environment in *folder*, with the files of its user."""

    folder: Path

    @classmethod
    def of(
        cls, folder: Path, wheel: Path, extras: str = "", *more: str, python: str = "3.11", constraints: Path = LOCK
    ) -> FreshEnvironment:
        """Installs *wheel* with *extras*, like `[spark]`, and *more* packages.

        Packages have the versions of *constraints*.
        """
        uv("venv", "--quiet", "--no-project", "--python", python_of(python), str(folder / "venv"))
        interpreter = str(folder / "venv" / "bin" / "python")
        uv(
            "pip",
            "install",
            "--quiet",
            "--python",
            interpreter,
            "--constraints",
            str(constraints),
            f"{wheel}{extras}",
            *more,
            folder=folder,
        )
        return cls(folder)

    @classmethod
    def on_spark(cls, folder: Path, wheel: Path, spark: str, *more: str, python: str) -> FreshEnvironment:
        """Installs *wheel* and *more* with this version of *spark*, as a user does for whom no extra has it."""
        pins = re.findall(r"^([\w.-]+)==(\S+)", LOCK.read_text(encoding="utf-8"), flags=re.MULTILINE)
        constraints = folder / "constraints.txt"
        constraints.write_text("".join(f"{name}=={version}\n" for name, version in pins if name not in OF_SPARK))
        return cls.of(folder, wheel, "", f"pyspark=={spark}", *more, python=python, constraints=constraints)

    @classmethod
    def beside(cls, folder: Path, present: Path, wheel: Path, extras: str, *more: str, python: str) -> FreshEnvironment:
        """Installs *wheel* plainly, with *extras* and *more*, where the packages of the file *present* are already."""
        made = cls(folder)
        uv("venv", "--quiet", "--no-project", "--python", python_of(python), str(folder / "venv"))
        made.install("--requirement", str(present))
        before = made.versions()
        made.install(f"{wheel}{extras}", *more)
        after = made.versions()
        assert {name: after.get(name) for name in before} == before
        uv("pip", "check", "--quiet", "--python", str(folder / "venv" / "bin" / "python"))
        return made

    def install(self, *what: str) -> None:
        """Installs *what*, as pip does: a package that is there and fits stays as it is."""
        uv("pip", "install", "--quiet", "--python", str(self.folder / "venv" / "bin" / "python"), *what)

    def versions(self) -> dict[str, str]:
        """Returns the version of each package."""
        listed = self.answer("python", "-c", VERSIONS)
        return dict(line.split("==") for line in listed.split())

    def environment(self, **more: str) -> dict[str, str]:
        """Returns the variables of a command here, and *more*."""
        binaries = self.folder / "venv" / "bin"
        own = {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "AIRFLOW_HOME": str(self.folder / "airflow"),
        }
        return {**_outside(), **own, **more}

    def run(
        self, *command: str, folder: Path | None = None, within_s: float = ENDS_WITHIN_S, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs *command* of this environment in *folder*."""
        program = self.folder / "venv" / "bin" / command[0]
        return subprocess.run(
            [str(program), *command[1:]], capture_output=True, text=True, timeout=within_s,
            cwd=folder or self.folder, env=self.environment(**env), check=False,
        )  # fmt: skip

    def answer(self, *command: str, folder: Path | None = None, within_s: float = ENDS_WITHIN_S, **env: str) -> str:
        """Returns the output of *command*, which succeeds."""
        ran = self.run(*command, folder=folder, within_s=within_s, **env)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout
