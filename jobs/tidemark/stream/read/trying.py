"""Has a process of its own read records that may kill their reader, as a driver does: Spark reads, Python parses.

    python -m tidemark.stream.read.trying < request.json

Exit status: 0 they were read; 3 the JVM ended; 1 another error, which says nothing of the records. It may be killed,
too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from tidemark.inert import log_to_stderr
from tidemark.spark import session
from tidemark.spec.connections import addressed
from tidemark.spec.operators import Source
from tidemark.spec.topology import load
from tidemark.stream.fatal import Unknown
from tidemark.stream.parts import Ranges
from tidemark.stream.read.sources import read_again

JVM_ENDED = 3
DEADLY = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL})
WITHIN_S = 600.0
"""A try that takes longer says nothing."""
POLL_S = 0.2
ENDS_WITHIN_S = 10.0
"""A JVM that runs out of memory may still answer for so long."""


def kills(
    ranges: Ranges, topology: Path, bootstrap: list[tuple[str, str]], spark: SparkSession, check: Callable[[], None]
) -> bool:
    """Whether a process that reads *ranges* of topics of *topology* is killed, or its JVM is; raises Unknown.

    Its JVM has the memory of that of *spark*. *check* is called meanwhile, and raises when there is no more time.
    """
    memory = spark.conf.get("spark.driver.memory", None)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    environ = {**own, "PYSPARK_SUBMIT_ARGS": f"{f'--driver-memory {memory} ' if memory else ''}pyspark-shell"}
    command = [sys.executable, "-m", "tidemark.stream.read.trying"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environ)
    try:
        assert process.stdin is not None
        request = {"topology": str(topology), "bootstrap": bootstrap, "ranges": ranges}
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        status = _awaited(process, check)
    finally:
        process.kill()
        process.wait()
    if status in {0, JVM_ENDED} or -status in DEADLY:
        return status != 0
    msg = f"a process that read {ranges} ended with status {status}"
    raise Unknown(msg)


def _awaited(process: subprocess.Popen[bytes], check: Callable[[], None]) -> int:
    """The exit status of *process*."""
    ends_at = time.monotonic() + WITHIN_S
    while (status := process.poll()) is None:
        check()
        if time.monotonic() > ends_at:
            msg = f"a process that reads records took longer than {WITHIN_S:g} s"
            raise Unknown(msg)
        time.sleep(POLL_S)
    return status


def main() -> int:
    """Read what standard input asks for."""
    log_to_stderr()
    asked = json.load(sys.stdin)
    topology = load(Path(asked["topology"]))
    given = [(name, address) for name, address in asked["bootstrap"]]
    clusters = addressed(topology.clusters_used, topology.clusters, given, os.environ)
    sources = {o.topic: o for o in topology.operators.values() if isinstance(o, Source) and o.topic}
    spark = session("tidemark-trying")
    try:
        for topic, offsets in asked["ranges"].items():
            source = sources[topic]
            read = {int(number): (start, end) for number, (start, end) in offsets.items()}
            read_again(spark, source, clusters[source.kafka], read, one_by_one=True)
    except Exception:
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
