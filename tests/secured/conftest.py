"""Starts a broker with TLS, logins and ACLs for each file."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from secured.secured_broker import SecuredBroker, granted


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """Yields the broker, with topics, rights, and passwords in the environment."""
    with granted(tmp_path_factory.mktemp("guarded")) as broker, pytest.MonkeyPatch.context() as environment:
        environment.setenv("KAFKA_TEST_PASSWORD", broker.password)
        environment.setenv("KAFKA_TEST_WRONG", "wrong-" + broker.password)
        yield broker


@pytest.fixture(scope="module", autouse=True)
def _no_client_stays() -> Iterator[None]:
    """Frees clients whose login was refused.

    Tracebacks keep them, and they would log in each second for as long as tests run.
    """
    yield
    gc.collect()
