"""Starts the Spark session of a job and runs its tasks."""

from __future__ import annotations

import logging
import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from py4j.java_gateway import JavaObject
from pyspark import SparkConf, SparkContext
from pyspark.sql import Column, DataFrame, SparkSession

from tidemark.control.spark_files import LOCAL_DIRS, PREFIX
from tidemark.errors import InvalidArgument
from tidemark.model.project.extras import untried
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.jars import lock_of_this_spark, require_jars
from tidemark.model.project.spark_settings import (
    SPARK_NEEDED,
    WITHOUT_SPARK,
    driver_settings,
    is_local,
    is_secret,
    jars,
    local_driver,
    settings,
)
from tidemark.storage.library import PACKAGE
from tidemark.storage.object_path import SCHEME
from tidemark.storage.private_folder import private_folder

log = logging.getLogger("tidemark.spark")
T = TypeVar("T")
_STREAMING = "org.apache.spark.sql.execution.streaming"
_COMPILING = threading.Lock()
_OF_SESSION = re.compile(
    r"spark\.(sql|databricks|hadoop|redaction)\.|spark\.(authenticate|log\.level)$|spark\.driver\.(memory|extraJavaOptions)$|"
    r"spark\.ui\.(enabled|showConsoleProgress)$"
)
"""Settings of a session that do not say where it runs."""
SECRETS = "TIDEMARK_SPARK_SECRETS"
"""Environment variable with the path of a properties file.

The file has `spark.authenticate.secret`, which a standalone cluster shares with its drivers.
"""


def session(
    name: str, more: Mapping[str, str] = MappingProxyType({}), *, like: Mapping[str, str] | None = None
) -> SparkSession:
    """Returns the Spark session of the job *name*, with *more* settings.

    It is as spark-submit configured it, else it has the project's settings and local jars. A job that Airflow tries
    without Spark exits here, and Airflow submits it. With *like* it has the settings of another process's session, from
    `local_settings`.
    """
    if WITHOUT_SPARK in os.environ:
        sys.exit(SPARK_NEEDED)
    for sentence in untried():
        log.warning("%s", sentence)
    builder = SparkSession.builder.appName(name).config(map={**more})
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # set by spark-submit for the Python it starts
        builder = builder.config(map={**_secret(submitted_properties().get("spark.master", ""))})
    elif like is not None:
        builder = builder.config(map={**like})
    else:
        require_jars("spark", lock=lock_of_this_spark())
        local = local_driver("local")
        builder = builder.config(map={**driver_settings(CHECKOUT), **local, "spark.jars": ",".join(jars(CHECKOUT))})
    with _private_files():
        spark = builder.getOrCreate()
    context = spark.sparkContext
    # Local workers run this process's code and interpreter. Those of other machines have settings for it.
    if is_local(str(context.master)):
        context.environment["PYTHONPATH"], context.pythonExec = str(PACKAGE.parent), sys.executable
    return spark


def local_settings(spark: SparkSession) -> dict[str, str]:
    """Returns the settings by which another process of this host gets a local session with the jars of *spark*.

    Its driver may have been submitted, with jars that only its JVM knows. Secrets are left out, since they would be
    arguments of a process.
    """
    kept = {name: value for name, value in spark.sparkContext.getConf().getAll() if _OF_SESSION.match(name)}
    own = {name: value for name, value in kept.items() if not is_secret(name)}
    jvm = spark._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    files = [unquote(str(url.getPath())) for url in loader.getURLs()]
    here = {"spark.master": "local[*]", **local_driver("local")}
    return {**own, **here, "spark.jars": ",".join(file for file in files if file.endswith(".jar"))}


def submitted_properties() -> dict[str, str]:
    """Returns the properties with which spark-submit started this process."""
    SparkContext._ensure_initialized()  # only with a JVM does SparkConf have them
    return dict(SparkConf().getAll())


@contextmanager
def _private_files() -> Iterator[None]:
    """Has a JVM that starts now write into a private folder.

    Nothing changes if the environment names a folder, as it does for drivers, or if the JVM runs already.
    """
    if os.environ.get(LOCAL_DIRS) or "PYSPARK_GATEWAY_PORT" in os.environ:
        yield
        return
    os.environ[LOCAL_DIRS] = str(private_folder(PREFIX))
    try:
        yield
    finally:
        # Processes that this one starts have folders of their own.
        del os.environ[LOCAL_DIRS]


def _secret(master: str) -> dict[str, str]:
    """Returns the setting with the secret of the standalone cluster *master*.

    It is empty for any other master, for which Spark makes the secret itself. Raises InvalidArgument if there is none.
    """
    # It comes from a file, after the start of the JVM: all users of a machine can read the arguments of processes.
    if not master.startswith("spark://"):
        return {}
    key = "spark.authenticate.secret"
    file = os.environ.get(SECRETS)
    secrets = dict(settings(Path(file))) if file and Path(file).is_file() else {}
    if key not in secrets:
        msg = (
            f"{SECRETS} must name a properties file with {key}, that of {master} and its workers, got {file!r}; "
            "docs/cluster.md shows how to create one"
        )
        raise InvalidArgument(msg)
    return {key: secrets[key]}


def forget_archives() -> None:
    """Removes the cached importers of archives in this worker of Spark.

    Otherwise it reads the directories of all archives on its path again for its next task.
    """
    # A list, since the cache is changed in the loop.
    for path, importer in [*sys.path_importer_cache.items()]:
        if type(importer).__name__ == "zipimporter":
            del sys.path_importer_cache[path]


def in_groups(rows: DataFrame, by: Sequence[Column], work: Callable[[pl.DataFrame], T]) -> list[T]:
    """Applies *work* to each group of *rows* in tasks of Spark.

    A task has the rows of one group in memory at a time. Its result is pickled, and collected here.

    Args:
        rows: the rows to group.
        by: columns whose values make the groups.
        work: makes a result of the rows of one group; it runs in a worker.

    Returns:
        The results, in no particular order.
    """

    def worked(of_group: pa.Table) -> pa.Table:
        forget_archives()
        return pa.table({"result": [pickle.dumps(work(pl.DataFrame(of_group)))]})

    results = rows.groupBy(*by).applyInArrow(worked, "result binary").toArrow()
    return [pickle.loads(result) for result in results["result"].to_pylist()]


def streaming_package(spark: SparkSession | SparkContext, part: str) -> str:
    """Returns the Java package with the *part* of Spark's streaming, such as `checkpointing`.

    In Spark 4.0 all parts are in one package.
    """
    return _STREAMING if spark.version.startswith("4.0.") else f"{_STREAMING}.{part}"


def have_checkpoints_written(spark: SparkSession, place: Path) -> None:
    """Makes the queries of *spark* write checkpoint files in *place* atomically.

    Of two drivers that write one file the second fails.
    """
    # In an S3 store a rename is a copy, so a file is written by one PUT, which Hadoop makes conditional for S3 alone.
    # Elsewhere it is renamed. Spark's default does that, too, but also looks up links and sets permissions, for which
    # Hadoop starts 20 processes a batch. There a driver looks for the file before it renames its own.
    manager = "CheckpointFiles" if place.parts[:1] == (SCHEME,) else "LocalCheckpointFiles"
    name = str(java_class(spark.sparkContext, "tidemark.storage", manager).getName())
    spark.conf.set("spark.sql.streaming.checkpointFileManagerClass", name)


def java_class(context: SparkContext, package: str, name: str) -> JavaObject:
    """Returns the Java class *name* of a file in a Python *package*; compiles it at the first call."""
    with _COMPILING:  # streams of a process start in threads
        return _java_class(context, package, name)


@cache
def _java_class(context: SparkContext, package: str, name: str) -> JavaObject:
    jvm = context._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    # Spark compiles its queries by Janino, so each driver has it, and none needs a Java compiler.
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    code = files(package).joinpath(f"{name}.java").read_text(encoding="utf-8")
    compiler.cook(code.replace(f"{_STREAMING}.checkpointing", streaming_package(context, "checkpointing")))
    folder = private_folder("tidemark-classes-")
    for compiled, content in dict(compiler.getBytecodes()).items():
        file = folder.joinpath(*compiled.split(".")).with_suffix(".class")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())
    loaded: JavaObject = loader.loadClass(f"tidemark.{name}")
    return loaded
