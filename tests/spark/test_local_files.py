"""Spark's files on a driver's host are private; encryption is a setting; another process gets the same jars."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.model.project.files import CHECKOUT
from tidemark.model.project.spark_settings import jars
from tidemark.spark_session import local_settings

CANARY = "canary-of-a-record"
CODE = f"""
import json, os, sys
from pathlib import Path
from pyspark import StorageLevel
from pyspark.sql import functions as F
from tidemark.spark_session import session

spark = session("local_files")
rows = spark.range(1_000).select("id", F.concat(F.lit("{CANARY}"), "id").alias("text"))
kept = rows.repartition(2, "id").persist(StorageLevel.DISK_ONLY)
count = kept.groupBy("text").count().count()
folders = [*Path(os.environ["TMPDIR"]).glob("tidemark-spark-*")]
files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
shown = {{
    "count": count,
    "modes": [oct(folder.stat().st_mode & 0o777) for folder in folders],
    "shuffles": sum("shuffle" in file.name for file in files),
    "with_canary": sum(b"{CANARY}" in file.read_bytes() for file in files),
    "elsewhere": [entry.name for entry in Path(os.environ["TMPDIR"]).glob("blockmgr-*")],
    "inherited": "SPARK_LOCAL_DIRS" in os.environ,
}}
spark.stop()
print(json.dumps(shown))
"""
UNCOMPRESSED = "--conf spark.shuffle.compress=false --conf spark.rdd.compress=false"


@pytest.mark.parametrize("is_encrypted", [pytest.param("false", marks=pytest.mark.long), "true"])
def test_files_of_spark_are_private_and_encrypted_on_request(tmp_path: Path, is_encrypted: str) -> None:
    conf = f"--master local[2] {UNCOMPRESSED} --conf spark.io.encryption.enabled={is_encrypted} pyspark-shell"
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYSPARK_SUBMIT_ARGS": conf}
    environment.pop("SPARK_LOCAL_DIRS", None)
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    shown = json.loads(done.stdout.splitlines()[-1])
    assert (shown["count"], shown["modes"], shown["elsewhere"]) == (1_000, ["0o700"], [])
    assert shown["shuffles"] > 0
    assert (shown["with_canary"] > 0) is (is_encrypted == "false")
    assert not shown["inherited"]
    assert [*tmp_path.glob("tidemark-spark-*")] == []


def test_a_local_session_of_another_process_has_the_jars_and_the_memory_and_no_secret(spark: SparkSession) -> None:
    context, secret = spark.sparkContext, "spark.hadoop.fs.s3a.secret.key"
    context._conf.set(secret, "s3cret")
    try:
        assert context.getConf().get(secret) == "s3cret"
        settings = local_settings(spark)
    finally:
        context._conf._jconf.remove(secret)
    assert settings["spark.jars"].split(",") == jars(CHECKOUT)
    assert settings["spark.driver.memory"] == context.getConf().get("spark.driver.memory")
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"
    assert settings["spark.master"] == "local[*]"
    assert not [name for name in settings if "secret" in name or ".port" in name or ".app." in name]
