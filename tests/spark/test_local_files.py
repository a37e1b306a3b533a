"""Spark's files on a driver's host are private; encryption is a setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
