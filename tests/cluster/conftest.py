"""Starts a Spark standalone cluster for all tests here.

Kafka is that of the streaming tests.
"""

from collections.abc import Iterator

import pytest
from streaming.conftest import broker, proxy

from tidemark.embedded import spark_cluster
from tidemark.embedded.spark_cluster import LocalCluster
from tidemark.spark_session import SECRETS

__all__ = ["broker", "proxy"]
collect_ignore_glob = ["dags/*"]  # which a real Airflow reads


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A master with two workers."""
    home = tmp_path_factory.mktemp("cluster")
    try:
        started = spark_cluster.start(home, cores=2, memory="2g")
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(SECRETS, str(started.secrets))
            yield started
    finally:
        spark_cluster.stop(home)
