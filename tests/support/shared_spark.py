"""Provides one Spark for all test files of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from tidemark.spark_session import session

OPTIONS = (
    "--master local[2,2] --conf spark.speculation=true"
    " --conf spark.sql.codegen.wholeStage=false --conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell"
)
"""A task that fails is tried again, and stages may speculate.

Spark interprets plans, since each query runs once or twice: their compilation took two fifths of the CPU time. The
drivers that tests start compile them, as users' drivers do.
"""


@contextmanager
def one_spark() -> Iterator[SparkSession]:
    """The session, which ends with the block."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_SUBMIT_ARGS", OPTIONS)
        spark = session("tests")
    yield spark
    spark.stop()


def ignore_open_sockets(config: pytest.Config) -> None:
    """Ignores PySpark's open sockets.

    PySpark leaves them to the garbage collector, which may come in any later test.
    """
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
