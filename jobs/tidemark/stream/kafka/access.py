"""Makes clients of clusters, and explains why a cluster denies something."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ClusterMetadata  # type: ignore[attr-defined]

from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.model.project.connections import Cluster
from tidemark.model.project.rights import MissingRight, Operation, Right

C = TypeVar("C")

_OF_LOGIN = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})
_SHARES = (0.05, 0.1, 0.25, 0.6)
"""Shares of the time to answer; refusals are read between them."""
_TOPICS = re.compile(r"Not authorized to access topics: \[([^\],]+)")
_GROUP = re.compile(r"Not authorized to access group: (\S+)")
_LOGIN = re.compile(r"(?:SaslAuthenticationException|SslAuthenticationException): ([^\n]+)")


class LoginDenied(TidemarkError):
    """Raised when a cluster refuses a client's login or certificate."""

    @classmethod
    def by(cls, cluster: Cluster, reason: str) -> LoginDenied:
        """Makes the error of *cluster*; *reason* are its words."""
        security = cluster.security
        whom = f" of {security.user}" if security.user else ""
        how = f" by {security.mechanism}" if security.mechanism else " by TLS"
        keys = ", ".join(sorted(security.values)) or "security_protocol"
        return cls(
            f"kafka.{cluster.name}: {cluster.bootstrap} refuses the login{whom}{how}: {reason}; correct {keys} of "
            f"[kafka.{cluster.name}], or what they name"
        )


class Refusals:
    """Keeps the last reason for which brokers refused a client's login."""

    def __init__(self) -> None:
        self.last_reason: str | None = None

    def __call__(self, error: KafkaError) -> None:
        """Receives an error of a client; the client calls it when polled."""
        if error.code() in _OF_LOGIN:
            self.last_reason = error.str()


class TopicLister(Protocol):
    """A client that lists topics."""

    def list_topics(self, topic: str = ..., timeout: float = ...) -> ClusterMetadata:
        """Returns what the cluster has."""

    def poll(self, timeout: float) -> object:
        """Calls the client's callbacks."""


def make_client(make: Callable[[dict[str, Any]], C], cluster: Cluster, settings: Mapping[str, object]) -> C:
    """Makes a client of *cluster* with *settings*, those of its login included.

    Raises:
        InvalidArgument: the client does not accept a setting.
    """
    try:
        return make({**settings})
    except KafkaException as error:
        reason = error.args[0].str()
        msg = f"kafka.{cluster.name}: {reason}; correct that key, or leave it out of [kafka.{cluster.name}.settings]"
        raise InvalidArgument(msg) from None


def list_topics(client: TopicLister, cluster: Cluster, refusals: Refusals, within_s: float) -> ClusterMetadata:
    """Returns the brokers and topics of *cluster*, *within_s* seconds.

    The *client* has *refusals* as its `error_cb`.

    Raises:
        KafkaException: no broker answers.
        LoginDenied: the cluster refuses the login.
    """
    until = time.monotonic() + within_s
    for share in _SHARES:
        try:
            return client.list_topics(timeout=min(share * within_s, max(0.01, until - time.monotonic())))
        except KafkaException as error:
            client.poll(0)
            if refusals.last_reason:
                raise LoginDenied.by(cluster, refusals.last_reason) from None
            last = error
    raise last


def missing_right_of(code: int, topic: str, cluster: str, operation: Operation) -> MissingRight | None:
    """Returns the error for the *code* of an answer; None for others.

    Args:
        code: that of a KafkaError.
        topic: the topic of the request.
        cluster: the name of the cluster.
        operation: the operation on the topic that the request needs.
    """
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return MissingRight(Right(operation, f"topic {topic}", cluster))
    if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        return MissingRight(Right(Operation.IDEMPOTENT_WRITE, "cluster", cluster))
    return None


def unauthorized_topic(error: Exception) -> str | None:
    """Returns the topic that *error* of Java's client denies, or None."""
    match = _TOPICS.search(_whole(error))
    return match[1].strip() if match else None


def unauthorized_group(error: Exception) -> str | None:
    """Returns the group that *error* of Java's client denies, or None."""
    match = _GROUP.search(_whole(error))
    return match[1].strip(".") if match else None


def login_refusal(error: Exception) -> str | None:
    """Returns why *error* of Java's client denies a login, or None."""
    match = _LOGIN.search(_whole(error))
    return match[1].strip() if match else None


def _whole(error: Exception) -> str:
    """Returns the text of *error*, its Java stack and its causes."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 10:
        texts += [str(cause), str(getattr(cause, "_stackTrace", "") or "")]
        cause = cause.__cause__
    return "\n".join(texts)
