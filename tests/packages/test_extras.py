"""`tidemark-streams[spark]` and `tidemark-streams[demo]` outside of a checkout; `make environments` runs this."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from packages.fresh import PROJECT, FreshEnvironment
from packages.projects import BOTH, COUNT, awaited, running, shop

pytestmark = pytest.mark.long
PYTHONS = ("3.11", "3.12", "3.13")


@pytest.mark.parametrize("version", PYTHONS[1:])
def test_rules_and_commands_work_on_newer_pythons(version: str, tmp_path: Path, wheel: Path) -> None:
    plain = FreshEnvironment.of(tmp_path, wheel, python=version)
    assert plain.answer("python", "--version").startswith(f"Python {version}.")
    plain.answer("tidemark", "init", "mine")
    shutil.copy(PROJECT / "docs" / "recipes" / "clicks.toml", tmp_path / "mine" / "topologies")
    assert "tables: visit_log, pages\n" in plain.answer("tidemark", "check", folder=tmp_path / "mine")


@pytest.fixture(scope="module", params=PYTHONS)
def on_spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> FreshEnvironment:
    """An environment with the extra for Spark."""
    return FreshEnvironment.of(tmp_path_factory.mktemp("spark"), wheel, "[spark]", python=request.param)


@pytest.mark.parametrize("on_spark", PYTHONS[:1], indirect=True)
def test_jars_are_resolved_with_their_hashes(on_spark: FreshEnvironment) -> None:
    jars = on_spark.folder / "data" / "tidemark" / "jars"
    assert on_spark.answer("tidemark", "jars") == f"{jars} has 58 jars, each with its locked hash\n"
    assert {path.name for path in jars.iterdir()} == {"broker", "spark"}
    (changed,) = jars.glob("spark/jts-core-*.jar")
    changed.write_text("other")
    again = on_spark.run("tidemark", "jars")
    assert "resolving 58 jars" in again.stderr
    assert changed.stat().st_size > 1_000_000


def test_a_stream_runs_from_the_wheel_and_is_drained(on_spark: FreshEnvironment, tmp_path: Path) -> None:
    project = shop(on_spark, tmp_path)
    with running(on_spark, project, "shop", TIDEMARK_JARS=str(PROJECT / ".jars")) as has_ended:
        assert awaited(on_spark, project, COUNT, BOTH, has_ended) == BOTH


@pytest.mark.parametrize("version", PYTHONS)
def test_the_demo_passes_from_the_wheel(version: str, tmp_path: Path, wheel: Path) -> None:
    installed = FreshEnvironment.of(tmp_path, wheel, "[demo]", python=version)
    said = installed.answer("tidemark", "demo", within_s=600, TIDEMARK_JARS=str(PROJECT / ".jars"))
    assert "the demo took" in said
    assert (tmp_path / "state" / "tidemark" / "warehouse").is_dir()
