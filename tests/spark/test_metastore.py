"""`tidemark publish sql` gives a Hive metastore every table and view, for any Spark session."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from support.play import NOON, Play, ms
from support.sql_scripts import statements_of
from support.topologies import BOARD
from tidemark.control import process
from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.spark_settings import jars

pytestmark = pytest.mark.long  # three sessions of Spark and a JVM with the metastore; the script itself: test_views

SESSION = """
import json, sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.config("spark.sql.catalogImplementation", "hive")
builder = builder.config("spark.hadoop.hive.metastore.uris", sys.argv[1]).config("spark.jars", sys.argv[2])
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
builder = builder.config("spark.sql.session.timeZone", "Asia/Kolkata").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "1")  # a few rows, and a hundred queries
spark = builder.getOrCreate()
answers = [[list(row) for row in spark.sql(text).collect()] for text in json.load(sys.stdin)]
print("ANSWERS", json.dumps(answers, default=str))
"""


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[str]:
    """Hive's metastore 2.3, whose jars PySpark brings, with a Derby database."""
    port, home = process.free_port(), tmp_path / "metastore"
    settings = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home}/db;create=true",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        "hive.metastore.thrift.bind.host": "127.0.0.1",
    }
    words = [word for name, value in settings.items() for word in ("--hiveconf", f"{name}={value}")]
    command = ["java", "-Xmx512m", f"-Dderby.system.home={home}", "-cp", f"{files('pyspark')}/jars/*"]
    command += ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
    launched = process.launch("metastore", [*command, *words], home=home, env=dict(os.environ))
    process.wait_until(lambda: answers(port), "Hive's metastore", 180, by=[launched])
    yield f"thrift://127.0.0.1:{port}"
    process.stop(home, "metastore")


def ran(*command: str, cwd: Path, given: str = "") -> str:
    done = subprocess.run(command, cwd=cwd, input=given, capture_output=True, text=True, check=False, timeout=1_200)
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def asked(metastore: str, *statements: str, cwd: Path) -> list[list[Any]]:
    """Returns the rows of each of *statements* in a new session."""
    command = [sys.executable, "-c", SESSION, metastore, ",".join(jars(CHECKOUT))]
    said = ran(*command, cwd=cwd, given=json.dumps(statements))
    (line,) = [line for line in said.splitlines() if line.startswith("ANSWERS")]
    rows: list[list[Any]] = json.loads(line.removeprefix("ANSWERS"))
    return rows


def test_a_session_with_the_metastore_alone_reads_every_name(metastore: str, tmp_path: Path) -> None:
    home = tmp_path / "it's here"
    play = Play(BOARD, home)

    def send(second: int, **values: int | None) -> None:
        sent = [play.row("events", ms(second), id=id_, v=v) for id_, v in values.items()]
        play.batch([{**row, "deleted": row["events"]["v"] is None} for row in sent], at_ms=ms(second))

    send(0, a=1, b=1)
    code = "import sys; from tidemark.cli.main import main; sys.exit(main())"
    script = ran(sys.executable, "-c", code, "--warehouse", str(home), "publish", "sql", cwd=tmp_path)
    statements = statements_of(script)
    # A second run changes nothing. Views are replaced by equal ones, and each takes the metastore a moment.
    again = [text for text in statements if not text.startswith("CREATE OR REPLACE VIEW")]
    asked(metastore, *statements, *again, cwd=tmp_path)
    send(1, a=2, b=None)
    send(4, c=1, d=3)  # after the tables were published
    (named,) = asked(metastore, "SHOW TABLES IN tidemark", cwd=tmp_path)
    tables = [name for _, name, _ in named]
    assert {"play__events__board", "board", "batches", "latest_state", "latency_rollup"} <= {*tables}
    board, savings, hours, latest, columns, *firsts = asked(
        metastore,
        "SELECT id, v FROM tidemark.board ORDER BY id",
        f"SELECT DISTINCT unix_millis(hour) - {NOON} FROM tidemark.savings_by_hour",  # not of this session's half hours
        "SELECT count(*) FROM tidemark.latency_by_hour",
        "SELECT key, value FROM tidemark.latest_state WHERE key = 'c'",
        "DESCRIBE TABLE tidemark.batches",
        *[f"SELECT * FROM tidemark.`{name}` LIMIT 1" for name in tables],
        cwd=tmp_path,
    )
    assert board == [["a", 2], ["c", 1], ["d", 3]]
    assert savings == [[0]]
    assert hours == [[0]]
    assert latest == [["c", '{"v":1}']]
    assert ["batch_id", "bigint", "micro-batch of that query, counted from 0"] in columns
    assert len(dict(zip(tables, firsts, strict=True))["board"]) == 1
