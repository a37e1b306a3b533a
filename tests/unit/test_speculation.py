"""Speculation is off while tasks send, and as it was afterwards."""

from __future__ import annotations

from contextlib import ExitStack

from pyspark import SparkConf

from tidemark.stream.shards.speculation import without_speculation


def test_speculation_is_off_until_the_last_stream_has_sent() -> None:
    conf = SparkConf(loadDefaults=False).set("spark.speculation", "true")
    limit = "spark.speculation.task.duration.threshold"
    conf.set(limit, "5s")
    first, second = ExitStack(), ExitStack()
    for streams in (first, second):
        streams.enter_context(without_speculation(conf))
    for stream in (first, second):
        assert (conf.get("spark.speculation"), conf.get(limit)) == ("false", "0")
        stream.close()
    assert (conf.get("spark.speculation"), conf.get(limit)) == ("true", "5s")
