"""Reads, in a separate process, records that may kill their reader.

It reads as a driver does: Spark reads, Python parses.

    python -m tidemark.stream.startup.trying < request.json

Exit status: 0 the records were read; 3 the JVM ended; 1 another error, which proves nothing about the records. The
process may be killed, too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.escaping import log_to_stderr
from tidemark.model.project.connections import addressed_clusters
from tidemark.model.project.registries import with_secrets
from tidemark.model.topology import load
from tidemark.spark_session import session
from tidemark.stream.read.parts import Ranges
from tidemark.stream.read.sources import read_again
from tidemark.stream.schemas.known_schemas import SchemaStore
from tidemark.stream.startup.fatal import TryInconclusive

JVM_ENDED = 3
DEADLY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
WITHIN_S = 600.0
"""The longest time of a try; a longer one proves nothing."""
POLL_S = 0.2
ENDS_WITHIN_S = 10.0
"""The longest time that a JVM out of memory may still answer."""


def kills(
    ranges: Ranges,
    topology: Path,
    bootstrap: list[tuple[str, str]],
    secrets: Mapping[str, str],
    spark: SparkSession,
    check: Callable[[], None],
) -> bool:
    """Returns whether reading *ranges* kills the process or its JVM.

    Args:
        ranges: The offsets to read, by topic and partition.
        topology: The file of the topology that has the topics.
        bootstrap: Addresses of clusters, by name.
        secrets: Values of secrets of clusters, by their places.
        spark: The session whose memory the JVM of the process gets.
        check: Called meanwhile; raises when there is no more time.

    Raises:
        TryInconclusive: The process ended otherwise, or took too long.
    """
    # With more memory than the driver's the record might not kill the process.
    memory = spark.conf.get("spark.driver.memory", None)
    # With the driver's gateway the process would use the JVM of the driver.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environ = {**own, "PYSPARK_SUBMIT_ARGS": f"{f'--driver-memory {memory} ' if memory else ''}pyspark-shell"}
    command = [sys.executable, "-m", "tidemark.stream.startup.trying"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ)
    try:
        assert process.stdin is not None
        # Secrets go by standard input, which no other user can read.
        request = {"topology": str(topology), "bootstrap": bootstrap, "secrets": dict(secrets), "ranges": ranges}
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        status = _awaited(process, check)
    finally:
        # A drain ends the try, and must not leave its process behind.
        process.kill()
        process.wait()
    if status in {0, JVM_ENDED} or -status in DEADLY:
        return status != 0
    msg = f"the process that read {ranges} ended with status {status}"
    raise TryInconclusive(msg)


def _awaited(process: subprocess.Popen[bytes], check: Callable[[], None]) -> int:
    """Returns the exit status of *process*."""
    ends_at = time.monotonic() + WITHIN_S
    while (status := process.poll()) is None:
        check()
        if time.monotonic() > ends_at:
            msg = f"the process that reads records took longer than {WITHIN_S:g} s"
            raise TryInconclusive(msg)
        time.sleep(POLL_S)
    return status


def main() -> int:
    """Reads the ranges that standard input names."""
    log_to_stderr()
    request = json.load(sys.stdin)
    topology = load(Path(request["topology"]))
    addresses = [(name, address) for name, address in request["bootstrap"]]
    clusters = addressed_clusters(
        topology.clusters_used, topology.clusters, addresses, os.environ, secrets=request["secrets"]
    )
    sources = [o for o in topology.outside_sources if o.topic]
    schemas = SchemaStore(with_secrets(topology.registries_used, os.environ, request["secrets"]), None)
    spark = session("tidemark-trying")
    try:
        for topic, offsets in request["ranges"].items():
            source = next(o for o in sources if o.reads(topic)).alone(topic)
            read = {int(number): (start, end) for number, (start, end) in offsets.items()}
            read_again(spark, source, clusters[source.kafka], read, schemas.resolve, one_by_one=True)
    except Exception:
        # Without a JVM, PySpark raises errors of its socket.
        if _has_jvm_ended():
            return JVM_ENDED
        raise
    with suppress(Exception):
        spark.stop()
    return 0


def _has_jvm_ended() -> bool:
    jvm = getattr(SparkContext._gateway, "proc", None)
    with suppress(subprocess.TimeoutExpired):
        return jvm is not None and jvm.wait(ENDS_WITHIN_S) is not None
    return False


if __name__ == "__main__":
    sys.exit(main())
