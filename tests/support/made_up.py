"""Packages of a user that add a kind to an open list, and programs that run with them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURE = '''
"""The number of updates that changed nothing."""

from tidemark.model.measures.limits import at_most
from tidemark.model.measures.registry import OUTCOMES, Count, Measure, every_operator, register
from tidemark.semantics.moved import Moved

register(
    Measure(
        name="unchanged_updates",
        definition="number of updates that changed nothing",
        of="operator",
        subjects=every_operator,
        limits=at_most,
        moves=frozenset({Moved.ROWS}),
        counts=(Count(what="unchanged", rows=OUTCOMES, at="batch_finished_at", n="sum(suppressed)"),),
        counted="unchanged updates",
    )
)
'''
OWNER = '''
"""The wait for a person who approves a batch."""

from tidemark.account.owners.registry import Owner, register

register(
    Owner(
        name="approval",
        detail="the operator",
        says="{detail} waited {amount} for an approval",
        proof="the times of its approvals",
        remedy="approve sooner",
    )
)
'''


def installed(folder: Path, modules: Mapping[str, str]) -> Path:
    """Returns *folder* with a package whose entry points are *modules*, texts by the name of their open list."""
    points = []
    for group, text in modules.items():
        (folder / f"made_up_{group}.py").write_text(text)
        points.append(f"[tidemark.{group}]\nmade_up = made_up_{group}\n")
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
