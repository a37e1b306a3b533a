"""Secrets that a launcher leaves for a driver."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tidemark.control.launch_secrets import forget, leave, name_of


def test_only_its_user_may_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        file = leave(tmp_path / "control", "l1", {"eu.password": "p"})
    finally:
        os.umask(before)
    assert (file.parent, file.name) == (tmp_path / "control", name_of("l1"))
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert json.loads(file.read_text()) == {"eu.password": "p"}


def test_files_of_earlier_launches_are_removed(tmp_path: Path) -> None:
    leave(tmp_path, "l1", {"eu.password": "old"})
    newest = leave(tmp_path, "l2", {"eu.password": "new"})
    assert [*tmp_path.glob("secrets_*")] == [newest]
    forget(tmp_path)
    assert [*tmp_path.iterdir()] == []
