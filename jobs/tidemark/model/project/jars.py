"""The locked JVM jars: which ones belong into the folder of jars.

`docker/jars.sha256` has the hash of each file for Spark 4.1, by its path in that folder. `jars-spark-4.0.sha256` and
the like are for other versions of Spark, and `jars-s3.sha256` is for an object store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tidemark.errors import InvalidArgument
from tidemark.model.project.files import CHECKOUT, IS_WHEEL, jars_folder

OF_SPARK, OF_S3 = "jars", "jars-s3"
"""Names of files with hashes."""


def locks_of_spark(checkout: Path = CHECKOUT) -> list[str]:
    """Returns the name of the lock for each version of Spark."""
    others = sorted(file.stem for file in (checkout / "docker").glob(f"{OF_SPARK}-spark-*.sha256"))
    return [OF_SPARK, *others]


def lock_of_this_spark(checkout: Path = CHECKOUT) -> str:
    """Returns the name of the lock for the Spark of this environment.

    Without Spark, or for a version without a lock, that is the lock of Spark 4.1.

    Raises:
        InvalidArgument: this Spark is too old for streams.
    """
    if not runs_streams():
        msg = (
            f"streams need Spark 4, and pyspark {version('pyspark')} is installed; "
            "docs/any-stream.md shows how its own jobs are recorded"
        )
        raise InvalidArgument(msg)
    with suppress(PackageNotFoundError):
        own = f"{OF_SPARK}-spark-{'.'.join(version('pyspark').split('.')[:2])}"
        if own in locks_of_spark(checkout):
            return own
    return OF_SPARK


def runs_streams() -> bool:
    """Returns False if this environment has a Spark before 4.0, for which there are no jars."""
    with suppress(PackageNotFoundError):
        return int(version("pyspark").split(".")[0]) >= 4
    return True


def locked(lock: str, checkout: Path = CHECKOUT) -> dict[str, str]:
    """Returns the SHA-256 of each jar of *lock*, by its path."""
    file = checkout / "docker" / f"{lock}.sha256"
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    # As sha256sum writes them: the hash, two spaces, the path.
    parts = (line.split(maxsplit=1) for line in lines)
    return {path: digest for digest, path in parts}


def require_jars(*uses: str, lock: str | None = None, folder: Path | None = None, checkout: Path = CHECKOUT) -> None:
    """Checks that *folder* has all jars that *lock* lists for the *uses*, and no others.

    A use is `spark` or `broker`. Without *lock* the jars may be for any version of Spark, because another environment
    may have another one.

    Raises:
        InvalidArgument: a jar is missing, or there is one that the lock does not list.
    """
    jars = folder or jars_folder(checkout)
    lock = lock or _fitting_lock(jars, checkout)
    for use in uses:
        needed = [path for path in locked(lock, checkout) if path.startswith(f"{use}/")]
        missing = [path for path in needed if not (jars / path).is_file()]
        if missing or not any((jars / use).glob("*.jar")):
            lacks = f"has no jars for {use}" if missing == needed else f"lacks {', '.join(missing)}"
            msg = f"{jars} {lacks}; run `{'tidemark jars' if IS_WHEEL else 'make setup'}`"
            raise InvalidArgument(msg)
    refuse_unexpected(jars, checkout, lock)


def refuse_unexpected(folder: Path, checkout: Path = CHECKOUT, lock: str | None = None) -> None:
    """Raises InvalidArgument if *folder* has a jar that *lock* does not list.

    Without *lock* the jars may be for any version of Spark, but not for two versions.
    """
    # A jar on the class path can replace any class of a driver.
    if unexpected := _unexpected(folder, checkout, lock or _fitting_lock(folder, checkout)):
        msg = f"{folder} must have the locked jars alone, but has {', '.join(unexpected)}; remove what you did not lock"
        raise InvalidArgument(msg)


def _fitting_lock(folder: Path, checkout: Path) -> str:
    """Returns the lock for the Spark whose jars *folder* has."""
    return min(locks_of_spark(checkout), key=lambda lock: len(_unexpected(folder, checkout, lock)))


def _unexpected(folder: Path, checkout: Path, lock: str) -> list[str]:
    expected = locked(lock, checkout).keys() | locked(OF_S3, checkout).keys()
    present = {path.relative_to(folder).as_posix() for path in folder.glob("*/*.jar")}
    return sorted(present - expected)


def wrong_jars(folder: Path, hashes: Mapping[str, str]) -> list[str]:
    """Returns the paths of *hashes* whose file is missing or different."""
    return [path for path, digest in hashes.items() if _digest(folder / path) != digest]


def _digest(file: Path) -> str | None:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
