"""The folder of jars has the locked files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import tidemark
from tidemark.errors import InvalidArgument
from tidemark.model.project.jars import OF_SPARK, locked, locks_of_spark, refuse_unexpected, require_jars, wrong_jars
from tidemark.model.project.spark_settings import jars

HASH_OF_A = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
"""SHA-256 of the letter a, as NIST's examples have it."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with two locked jars."""
    (tmp_path / "docker").mkdir()
    lines = f"{HASH_OF_A}  spark/a.jar\n{HASH_OF_A}  broker/b.jar\n"
    (tmp_path / "docker" / "jars.sha256").write_text(lines)
    for path in ("spark/a.jar", "broker/b.jar"):
        (tmp_path / ".jars" / path).parent.mkdir(parents=True)
        (tmp_path / ".jars" / path).write_text("a")
    return tmp_path


def test_a_jar_with_other_content_is_wrong(checkout: Path) -> None:
    assert wrong_jars(checkout / ".jars", locked("jars", checkout)) == []
    (checkout / ".jars" / "spark" / "a.jar").write_text("b")
    (checkout / ".jars" / "broker" / "b.jar").unlink()
    assert wrong_jars(checkout / ".jars", locked("jars", checkout)) == ["spark/a.jar", "broker/b.jar"]


def test_a_driver_does_not_start_with_an_unexpected_jar(checkout: Path) -> None:
    assert jars(checkout) == [str(checkout / ".jars" / "spark" / "a.jar")]
    (checkout / ".jars" / "s3").mkdir()
    for path in ("spark/z.jar", "s3/c.jar"):
        (checkout / ".jars" / path).write_text("a")
    with pytest.raises(InvalidArgument, match=r"locked jars alone, but has s3/c.jar, spark/z.jar; remove"):
        jars(checkout)
    with pytest.raises(InvalidArgument, match=r"but has s3/c.jar, spark/z.jar"):
        require_jars("broker", folder=checkout / ".jars", checkout=checkout)


def test_a_folder_has_the_jars_of_one_spark(checkout: Path) -> None:
    lock = checkout / "docker" / "jars-spark-4.0.sha256"
    lock.write_text(f"{HASH_OF_A}  spark/old.jar\n{HASH_OF_A}  broker/b.jar\n")
    old = checkout / ".jars" / "spark" / "old.jar"
    old.write_text("a")
    with pytest.raises(InvalidArgument, match=r"locked jars alone, but has spark/(a|old).jar; remove"):
        jars(checkout)
    (checkout / ".jars" / "spark" / "a.jar").unlink()
    # Airflow does not know which Spark another environment has.
    assert jars(checkout) == [str(old)]
    require_jars("spark", "broker", folder=checkout / ".jars", checkout=checkout)
    require_jars("spark", lock=lock.stem, folder=checkout / ".jars", checkout=checkout)
    with pytest.raises(InvalidArgument, match=r"has no jars for spark; run `make setup`"):
        require_jars("spark", lock=OF_SPARK, folder=checkout / ".jars", checkout=checkout)


def test_the_jars_of_each_spark_are_built_for_it_and_have_the_same_broker() -> None:
    deltas, brokers = [], []
    for lock in locks_of_spark():
        paths = locked(lock)
        deltas += [path for path in paths if path.startswith("spark/delta-spark_")]
        brokers.append({path: digest for path, digest in paths.items() if path.startswith("broker/")})
    assert deltas == [f"spark/delta-spark_{version}_2.13-4.4.0.jar" for version in ("4.1", "4.0", "4.2")]
    assert brokers == [brokers[0]] * 3


def test_a_folder_without_jars_of_a_use_names_the_command(checkout: Path) -> None:
    require_jars("spark", "broker", folder=checkout / ".jars", checkout=checkout)
    (checkout / ".jars" / "broker" / "b.jar").unlink()
    with pytest.raises(InvalidArgument, match=r"has no jars for broker; run `make setup`"):
        require_jars("spark", "broker", folder=checkout / ".jars", checkout=checkout)


def test_a_missing_jar_among_others_is_named(checkout: Path) -> None:
    lock = checkout / "docker" / "jars.sha256"
    lock.write_text(f"{lock.read_text()}{HASH_OF_A}  spark/c.jar\n")
    require_jars("broker", folder=checkout / ".jars", checkout=checkout)
    with pytest.raises(InvalidArgument, match=r"lacks spark/c.jar; run `make setup`"):
        require_jars("broker", "spark", folder=checkout / ".jars", checkout=checkout)


def test_archives_and_logs_beside_jars_are_no_jars(checkout: Path) -> None:
    (checkout / ".jars" / "classes.jsa").touch()
    (checkout / ".jars" / "ivy.log").touch()
    refuse_unexpected(checkout / ".jars", checkout)


def test_the_command_refuses_an_unexpected_jar(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "mine.jar").touch()
    ran = tidemark(tmp_path, "jars", str(tmp_path))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "but has spark/mine.jar; remove what you did not lock" in ran.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["spark"]


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    # A file in place of a folder refuses new files, as a read-only home does.
    (tmp_path / "home").touch()
    ran = tidemark(tmp_path, "jars", "home/jars")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines()[-1] == (
        f"tidemark jars: {tmp_path}/home/jars cannot be written: Not a directory; name another folder, "
        "as an argument or by TIDEMARK_JARS"
    )
