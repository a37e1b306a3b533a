"""Rights and logins that a cluster denies to both clients."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from confluent_kafka import KafkaError

from tidemark.model.project.connections import Cluster
from tidemark.model.project.kafka_security import Protocol, Security
from tidemark.model.project.rights import MissingRight, Operation, Right, acl, missing_right
from tidemark.stream.driver.reason import as_reason
from tidemark.stream.kafka.access import (
    LoginDenied,
    LoginInterrupted,
    Refusals,
    login_refusal,
    missing_right_of,
    unauthorized_group,
    unauthorized_topic,
)
from tidemark.stream.kafka.client import KafkaBroker

EU = Cluster("broker.eu:9093", "eu")
JAVA = "Job aborted due to stage failure: Task 0 in stage 0.0 failed: org.apache.kafka.common.errors."


def test_java_names_what_it_may_not_use() -> None:
    topic = RuntimeError(f"{JAVA}TopicAuthorizationException: Not authorized to access topics: [readings]\n\nDriver")
    group = RuntimeError(f"{JAVA}GroupAuthorizationException: Not authorized to access group: spark-kafka-source-1\n")
    login = RuntimeError(f"{JAVA}SaslAuthenticationException: Authentication failed: invalid credentials\n\tat x")
    assert [unauthorized_topic(error) for error in (topic, group, login)] == ["readings", None, None]
    assert [unauthorized_group(error) for error in (topic, group, login)] == [None, "spark-kafka-source-1", None]
    assert login_refusal(login) == "Authentication failed: invalid credentials"
    assert (login_refusal(topic), login_refusal(group)) == (None, None)


def test_a_cause_of_an_error_is_read_too() -> None:
    with pytest.raises(ValueError, match="outer") as raised:
        raise ValueError("outer") from RuntimeError("Not authorized to access topics: [inner]")  # noqa: EM101
    assert unauthorized_topic(raised.value) == "inner"


def test_a_broker_names_what_it_denies() -> None:
    missing = missing_right_of(KafkaError.TOPIC_AUTHORIZATION_FAILED, "out", EU, Operation.WRITE)
    assert missing is not None
    assert missing.right == Right(Operation.WRITE, "topic out", "eu")
    of_cluster = missing_right_of(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "out", EU, Operation.WRITE)
    assert of_cluster is not None
    assert of_cluster.right == Right(Operation.IDEMPOTENT_WRITE, "cluster", "eu")
    assert missing_right_of(KafkaError.UNKNOWN_TOPIC_OR_PART, "out", EU, Operation.WRITE) is None


@pytest.mark.parametrize(
    "right",
    [
        Right(Operation.READ, "topic a.b_c-d", "default"),
        Right(Operation.IDEMPOTENT_WRITE, "cluster", "eu"),
        Right(Operation.READ, "group spark-kafka-source-1", "eu"),
    ],
)
def test_a_right_is_read_from_the_reason_of_a_failure(right: Right) -> None:
    for user in ("", "ann"):
        assert missing_right(as_reason(MissingRight(right, user))) == right
    assert missing_right(as_reason(pickle.loads(pickle.dumps(MissingRight(right, "ann"))))) == right
    assert missing_right(as_reason(MissingRight(right, "ann", "b:1"))) == right
    assert missing_right(f"PublishError: {MissingRight(right)}") is None


def test_the_remedy_is_a_whole_command() -> None:
    right = Right(Operation.READ, "topic readings", "eu")
    command = "kafka-acls --bootstrap-server broker.eu:9093 --add --allow-principal User:ann --operation Read"
    assert acl(right, "ann", "broker.eu:9093") == f"`{command} --topic readings`"
    missing = missing_right_of(KafkaError.TOPIC_AUTHORIZATION_FAILED, "readings", EU, Operation.READ)
    for each in (missing, pickle.loads(pickle.dumps(missing))):
        assert "`kafka-acls --bootstrap-server broker.eu:9093 --add --allow-principal User:NAME" in str(each)


@pytest.mark.parametrize(
    "words",
    [
        "SASL SCRAM-SHA-256 mechanism handshake failed: Local: Broker transport failure: broker's supp: ",
        "SASL authentication error: SaslAuthenticateRequest failed: Local: Timed out (after 10 ms in state AUTH_REQ)",
        "Disconnected: hung up from peer in state AUTH_LEGACY",
    ],
)
def test_a_cut_connection_is_no_refused_login(words: str) -> None:
    refusals = Refusals()
    refusals(KafkaError(KafkaError._AUTHENTICATION, words))
    assert refusals.last_reason is None
    with pytest.raises(
        LoginInterrupted, match=r"kafka\.eu: broker\.eu:9093 ended the connection during the login, with"
    ):
        refusals.raise_for(EU)
    refusals(KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: Authentication failed during auth"))
    with pytest.raises(
        LoginDenied, match=r"kafka\.eu: broker\.eu:9093 refuses the login by TLS: SASL authentication err"
    ):
        refusals.raise_for(EU)
    refusals.forget()
    refusals.raise_for(EU)


def test_a_provider_without_a_token_is_no_broker() -> None:
    refusals = Refusals()
    words = 'Failed to acquire SASL OAUTHBEARER token: Failed to retrieve OIDC token from "u": timed out (-1)'
    refusals(KafkaError(KafkaError._AUTHENTICATION, words))
    with pytest.raises(LoginDenied, match=r"kafka\.eu: the provider of token_url gives no token: Failed to acquire"):
        refusals.raise_for(EU)


def test_an_answer_of_a_broker_ends_older_refusals() -> None:
    refusals = Refusals()
    refusals(KafkaError(KafkaError._AUTHENTICATION, "Disconnected: hung up from peer in state AUTH_LEGACY"))
    with pytest.raises(LoginInterrupted):
        refusals.raise_unless_answered(KafkaError(KafkaError._TIMED_OUT), EU)
    refusals.raise_unless_answered(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), EU)
    refusals.raise_unless_answered(KafkaError(KafkaError._TIMED_OUT), EU)


def test_only_refused_logins_are_kept() -> None:
    refusals = Refusals()
    refusals(KafkaError(KafkaError._TRANSPORT, "gone"))
    assert refusals.last_reason is None
    refusals(KafkaError(KafkaError._AUTHENTICATION, "no"))
    refusals(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all"))
    assert refusals.last_reason == "no"


@pytest.fixture
def without_tls() -> Iterator[str]:
    """The address of a server that does not know TLS."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client, suppress(OSError):
                    client.recv(1_000)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_cluster_that_refuses_a_login_is_not_silent(without_tls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemark.stream.kafka.client.TIMEOUT_S", 1.0)
    tls = Security(protocol=Protocol.SSL)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    clusters = {"us": Cluster(without_tls, "us", tls), "eu": Cluster(address, "eu", tls)}
    # A driver would wait for ever for a cluster that never lets it in.
    assert KafkaBroker(clusters, "play", "events", lambda: 0).silent() == {"eu": address}
