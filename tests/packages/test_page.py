"""docs/installation.md: its commands are run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from packages.fresh import PROJECT, UV, FreshEnvironment

PAGE = (PROJECT / "docs" / "installation.md").read_text(encoding="utf-8")


def test_the_commands_of_the_page_install_and_check(tmp_path: Path, wheel: Path) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "dist").mkdir()
    shutil.copy(wheel, tmp_path / "dist")
    # uv has the packages in its cache, and pip would download them again.
    by_uv = commands.replace("tide/bin/pip install", f"{UV} pip install --python tide/bin/python")
    by_uv = by_uv.replace("-m venv tide", "-m venv --without-pip tide")
    environment = FreshEnvironment(tmp_path).environment(CHECKOUT=str(PROJECT))
    ran = subprocess.run(
        ["bash", "-ec", by_uv], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "clickstream: tables: visit_log, pages\n" in ran.stdout


def test_the_dag_file_of_the_page_is_that_of_the_checkout() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    file = (PROJECT / "dags" / "tidemark_streams.py").read_text(encoding="utf-8")
    *imports, _, made = code.splitlines()
    assert imports == [
        line.removesuffix("  # noqa: F401") for line in file.splitlines() if line.startswith(("import", "from"))
    ]
    assert made.removesuffix(")") in file
