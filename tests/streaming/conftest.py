"""One real broker for all streaming tests."""

from collections.abc import Iterator

import pytest

from tidemark.embedded import broker as embedded


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Kafka broker that lives as long as the session; topics are the tests' own business."""
    home = tmp_path_factory.mktemp("broker")
    try:
        yield embedded.start(home).address
    finally:
        embedded.stop(home)
