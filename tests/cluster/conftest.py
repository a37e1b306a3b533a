"""A Spark standalone cluster for all tests here; Kafka is that of the streaming tests."""

from collections.abc import Iterator

import pytest
from streaming.conftest import broker

from tidemark.embedded import spark_cluster
from tidemark.embedded.spark_cluster import Cluster

__all__ = ["broker"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master with two workers."""
    home = tmp_path_factory.mktemp("cluster")
    try:
        yield spark_cluster.start(home, cores=2, memory="2g")
    finally:
        spark_cluster.stop(home)
