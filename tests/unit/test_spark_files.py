"""Files of Spark lie below a driver's folder, for its user alone."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.control.spark_files import LOCAL_DIRS, with_spark_folder


def test_the_folder_is_private_for_every_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        environ = with_spark_folder(tmp_path / "status", {"TZ": "UTC"})
    finally:
        os.umask(before)
    folder = tmp_path / "status" / "spark"
    assert environ == {"TZ": "UTC", LOCAL_DIRS: str(folder)}
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def test_files_of_a_killed_driver_are_removed(tmp_path: Path) -> None:
    left = tmp_path / "spark" / "blockmgr-1" / "00"
    left.mkdir(parents=True)
    (left / "shuffle_0_0_0.data").write_text("records")
    (tmp_path / "heartbeat.json").touch()
    with_spark_folder(tmp_path, {})
    assert [path.name for path in (tmp_path / "spark").iterdir()] == []
    assert (tmp_path / "heartbeat.json").exists()


def test_a_folder_that_the_environment_names_is_kept(tmp_path: Path) -> None:
    assert with_spark_folder(tmp_path, {LOCAL_DIRS: "/local/disk"}) == {LOCAL_DIRS: "/local/disk"}
    assert [*tmp_path.iterdir()] == []
    assert with_spark_folder(tmp_path, {LOCAL_DIRS: ""}) == {LOCAL_DIRS: str(tmp_path / "spark")}


def test_a_comma_would_end_the_path_so_spark_chooses(tmp_path: Path) -> None:
    assert with_spark_folder(tmp_path / "a,b", {}) == {}
