"""Packages of a user that add a kind to an open list, and programs that run with them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def example(group: str) -> str:
    """Returns the module that docs/extending.md shows under an entry point's *group*."""
    return (ROOT / "docs" / "extending" / f"{group}.py").read_text(encoding="utf-8")


MEASURE, OWNER, OPERATOR, SOURCE = map(example, ("measures", "owners", "operators", "sources"))
FUNCTION, FORMAT, METRIC, CHANNEL, COMMAND = map(
    example, ("aggregate_functions", "formats", "metrics", "channels", "commands")
)


def installed(folder: Path, modules: Mapping[str, str], *, name: str = "made_up") -> Path:
    """Returns *folder* with a package whose entry points are *modules*, texts by the name of their open list."""
    points = []
    for group, text in modules.items():
        # The page has a package of its own.
        (folder / f"made_up_{group}.py").write_text(re.sub(r"my_package\.\w+", f"made_up_{group}", text))
        points.append(f"[tidemark.{group}]\n{name} = made_up_{group}\n")
    about = folder / "made_up-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(points))
    return folder


def run_with(packages: Path, program: str, *words: str, folder: Path) -> str:
    """Returns what the Python *program* with the arguments *words* prints in *folder*, where *packages* are installed.

    Raises AssertionError with its errors if it fails.
    """
    paths = os.pathsep.join(map(str, (ROOT / "jobs", ROOT / "tests", packages)))
    settings = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
    command = [sys.executable, "-W", "ignore", "-c", program, *words]
    done = subprocess.run(
        command, env=settings | {"PYTHONPATH": paths}, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
