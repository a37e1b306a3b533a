"""The locked JVM jars: which ones belong into the folder of jars.

`docker/jars.sha256` and `jars-s3.sha256` have the hash of each file, by its path in that folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import CHECKOUT, IS_WHEEL, jars_folder

LOCKS = ("jars", "jars-s3")
"""Names of the files with hashes."""


def locked(lock: str, checkout: Path = CHECKOUT) -> dict[str, str]:
    """Returns the SHA-256 of each jar of *lock*, by its path."""
    file = checkout / "docker" / f"{lock}.sha256"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    # As sha256sum writes them: the hash, two spaces, the path.
    parts = (line.split(maxsplit=1) for line in lines)
    return {path: digest for digest, path in parts}


def require_jars(*uses: str, folder: Path | None = None, checkout: Path = CHECKOUT) -> None:
    """Checks that *folder* has the locked jars of each use, and no others.

    Uses are `spark` and `broker`.

    Raises:
        InvalidArgument: it lacks one of them, or has a jar that no lock has.
    """
    jars = folder or jars_folder(checkout)
    for use in uses:
        needed = [path for path in locked("jars", checkout) if path.startswith(f"{use}/")]
        missing = [path for path in needed if not (jars / path).is_file()]
        if missing or not any((jars / use).glob("*.jar")):
            lacks = f"has no jars for {use}" if missing == needed else f"lacks {', '.join(missing)}"
            msg = f"{jars} {lacks}; run `{'tidemark jars' if IS_WHEEL else 'make setup'}`"
            raise InvalidArgument(msg)
    refuse_unexpected(jars, checkout)


def refuse_unexpected(folder: Path, checkout: Path = CHECKOUT) -> None:
    """Raises InvalidArgument if *folder* has a jar that no lock has."""
    # A jar on the class path can replace any class of a driver.
    expected = set[str]().union(*(locked(lock, checkout) for lock in LOCKS))
    present = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.jar")}
    if unexpected := sorted(present - expected):
        msg = f"{folder} must have the locked jars alone, but has {', '.join(unexpected)}; remove what you did not lock"
        raise InvalidArgument(msg)


def wrong_jars(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Returns the paths of *hashes* whose file is missing or different."""
    return [path for path, digest in hashes.items() if _digest(folder / path) != digest]


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
