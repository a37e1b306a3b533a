"""Switches Spark's speculation off for tasks that must not overlap.

Spark has no switch for one stage, but each stage reads the settings of its context when it is submitted. A barrier
stage has no speculative copies either. It waits until all of its tasks can start at once, though, and is refused where
executors are allocated dynamically.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from pyspark import SparkConf

OFF = {"spark.speculation": "false", "spark.speculation.task.duration.threshold": "0"}
"""Settings that prevent speculative copies.

There is no copy of a task that is slower than others, and none of one that is slower than a fixed time.
"""
_LOCK = Lock()
_WITHOUT: list[dict[str, str]] = []
"""The original settings, once for each stream that has switched them off."""


@contextmanager
def without_speculation(conf: SparkConf) -> Iterator[None]:
    """Prevents speculation of stages submitted until the context ends.

    *conf* must be the object that the Spark context uses, not a copy.
    """
    with _LOCK:
        # A second stream would otherwise read the settings that the first has switched off.
        before = _WITHOUT[0] if _WITHOUT else {key: conf.get(key, off) for key, off in OFF.items()}
        _WITHOUT.append(before)
        conf.setAll([*OFF.items()])
    try:
        yield
    finally:
        with _LOCK:
            # Streams that share the Spark context may overlap: the last one to end restores the settings.
            _WITHOUT.pop()
            if not _WITHOUT:
                conf.setAll([*before.items()])
