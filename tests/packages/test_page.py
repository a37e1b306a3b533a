"""docs/installation.md: its commands are run as they stand there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packages.fresh import PROJECT, UV, FreshEnvironment, uv

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


@pytest.mark.long  # a build takes 15 s
def test_two_builds_of_the_wheel_have_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795000000")
    for name in ("first", "second"):
        shutil.copytree(PROJECT, tmp_path / name, ignore=shutil.ignore_patterns(".*", "build", "dist"), symlinks=True)
        for path in (tmp_path / name).rglob("*"):
            path.touch()  # a checkout gives files its own time
        uv("build", "--wheel", "--out-dir", str(tmp_path), str(tmp_path / name))
        (tmp_path / "tidemark_streams-0.1.0-py3-none-any.whl").rename(tmp_path / f"{name}.whl")
    assert (tmp_path / "first.whl").read_bytes() == (tmp_path / "second.whl").read_bytes()


def test_the_dag_file_of_the_page_is_that_of_the_checkout() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    file = (PROJECT / "dags" / "tidemark_streams.py").read_text(encoding="utf-8")
    *imports, _, made = code.splitlines()
    assert imports == [
        line.removesuffix("  # noqa: F401") for line in file.splitlines() if line.startswith(("import", "from"))
    ]
    assert made.removesuffix(")") in file
