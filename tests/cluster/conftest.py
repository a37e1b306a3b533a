"""Starts a Spark standalone cluster and a broker for each file."""

from collections.abc import Iterator

import pytest

from tidemark.local import broker as embedded
from tidemark.local import spark_cluster
from tidemark.local.spark_cluster import LocalCluster
from tidemark.spark_session import SECRETS

collect_ignore_glob = ["dags/*"]  # which a real Airflow reads


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of a Kafka broker."""
    home = tmp_path_factory.mktemp("broker")
    try:
        yield embedded.start(home).address
    finally:
        embedded.stop(home)


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
