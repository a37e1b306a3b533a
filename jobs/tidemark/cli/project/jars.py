"""`tidemark jars`: resolves the locked JVM jars of Kafka, and of the Spark of this environment.

How it works: Ivy, which PySpark brings along, downloads them into a folder of its own. Files with the locked hashes
replace those in the folder of jars, so that an interrupted run or a wrong file changes nothing there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from tidemark.cli.shared.output import say, say_inert
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.extras import missing
from tidemark.model.project.files import CHECKOUT, JARS_VARIABLE, jars_folder
from tidemark.model.project.jars import OF_S3, lock_of_this_spark, locked, refuse_unexpected, wrong_jars


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    default = "default: $TIDEMARK_JARS, else .jars of the checkout, else tidemark/jars in the user's folder of data"
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=f"folder of the jars ({default})")
    parser.add_argument("--s3", action="store_true", help="also download the jars for a warehouse in an object store")


def command(options: argparse.Namespace) -> int:
    """Resolves the jars that are missing or wrong."""
    folder = (options.folder or jars_folder()).resolve()
    of_spark = lock_of_this_spark()
    refuse_unexpected(folder, lock=of_spark)
    number = 0
    for lock in (of_spark, OF_S3) if options.s3 else (of_spark,):
        hashes = locked(lock)
        number += len(hashes)
        if wrong_jars(folder, hashes):
            say(f"▸ resolving {len(hashes)} jars of {lock}.sha256 …", sys.stderr)
            try:
                _resolve(lock, folder)
            except OSError as error:
                remedy = f"name another folder, as an argument or by {JARS_VARIABLE}"
                msg = f"{folder} cannot be written: {error.strerror}; {remedy}"
                raise TidemarkError(msg) from error
    say_inert(f"{folder} has {number} jars, each with its locked hash")
    return 0


def _resolve(lock: str, folder: Path) -> None:
    """Replaces the jars of *lock* in *folder*.

    Raises:
        TidemarkError: one cannot be had, or is not the locked one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hashes = locked(lock)
    # In the folder itself, since a rename does not leave a disk.
    with TemporaryDirectory(prefix=".resolving-", dir=folder) as name:
        resolved = Path(name)
        ended = _ivy(lock, resolved)
        if wrong := wrong_jars(resolved, hashes):
            absent = [path for path in wrong if not (resolved / path).is_file()]
            what = "cannot be had" if absent else "differ from their locked hashes"
            reason = f"; the last line of Ivy: {ended.strip().splitlines()[-1]}" if absent and ended.strip() else ""
            msg = f"{', '.join(absent or wrong)}: {what}; nothing was replaced{reason}"
            raise TidemarkError(msg)
        for path in hashes:
            (folder / path).parent.mkdir(exist_ok=True)
            (resolved / path).replace(folder / path)


def _ivy(lock: str, folder: Path) -> str:
    """Downloads the jars of *lock* to *folder*; returns what Ivy prints."""
    java = shutil.which("java")
    if java is None:
        msg = "needs Java 17 or 21, but 'java' was not found; install it or correct PATH"
        raise InvalidArgument(msg)
    spec = CHECKOUT / "docker" / f"{lock.replace('jars', 'ivy')}.xml"
    # `[conf]` is the use of a jar, spark or broker, and so its folder.
    where = ["-cache", str(folder / "cache"), "-retrieve", f"{folder}/[conf]/[artifact]-[revision].[ext]"]
    command = [java, "-jar", str(_jar_of_ivy()), "-ivy", str(spec), *where]
    # The status does not matter: the caller compares hashes.
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return ended.stdout


def _jar_of_ivy() -> Path:
    spec = find_spec("pyspark")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for jar in sorted(Path(folder).glob("jars/ivy-*.jar")):
            return jar
    msg = f"needs Ivy, which PySpark brings along: {missing('pyspark')}"
    raise InvalidArgument(msg)
