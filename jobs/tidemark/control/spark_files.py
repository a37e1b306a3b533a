"""Makes private folders for Spark's files on a driver's host.

By default Spark makes folders in /tmp that every user may read, and writes records there: shuffled, cached or spilled.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tidemark.storage.locks import own_folder
from tidemark.storage.object_path import ObjectPath

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Spark's variable with the folders of such files; it precedes `spark.local.dir`."""
PREFIX = "tidemark-spark-"
"""Beginning of the names of folders for jobs without a control folder."""
_FOLDER = "spark"


def with_spark_folder(home: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns *environ* with a new folder in *home* for Spark's files.

    Files of an earlier process of *home*, which must have ended, are removed. If *environ* names a folder already, for
    example one on a local disk because *home* is on a network file system, that one is kept.
    """
    # For Spark a comma ends a path.
    if environ.get(LOCAL_DIRS) or isinstance(home, ObjectPath) or "," in str(home):
        return {**environ}
    folder = home / _FOLDER
    own_folder(home)
    shutil.rmtree(folder, ignore_errors=True)
    own_folder(folder)
    return {**environ, LOCAL_DIRS: str(folder)}
