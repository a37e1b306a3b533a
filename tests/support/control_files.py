"""Compares the files of a control folder with the list of `control/files.py`."""

from __future__ import annotations

from pathlib import Path

from tidemark.control.files import listed


def unlisted(control: Path) -> list[str]:
    """Returns the files in the folder *control* that are not in the list; hidden ones are those of Hadoop."""
    files = [path for path in sorted(control.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return [path.relative_to(control).as_posix() for path in files if listed(control, path) is None]
