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
_CUT_OFF = re.compile(r"Local: (Broker transport failure|Timed out)|Disconnected|hung up", re.IGNORECASE)
"""librdkafka's words if a connection ended while a client logged in.

The error has the code of a refused login, but the broker refused nothing.
"""
_NO_TOKEN = re.compile(r"Failed to (acquire|retrieve) .*token", re.IGNORECASE)
"""librdkafka's words if the OIDC provider gave no token."""
NEWEST_LOCAL = -100
"""librdkafka's own errors have codes from -200 to this; all others are errors of brokers."""
_SHARES = (0.05, 0.1, 0.25, 0.6)
"""Shares of the time to answer; refusals are read between them."""
# Errors of Java's client reach Python as text, so names are read from their messages.
_TOPICS = re.compile(r"Not authorized to access topics: \[([^\],]+)")
_GROUP = re.compile(r"Not authorized to access group: (\S+)")
_LOGIN = re.compile(r"(?:SaslAuthenticationException|SslAuthenticationException): ([^\n]+)")


class LoginDenied(TidemarkError):
    """Raised when a cluster refuses a client's login or certificate."""

    @classmethod
    def by(cls, cluster: Cluster, reason: str) -> LoginDenied:
        """Makes the error about *cluster*, which gave this *reason*."""
        security = cluster.security
        if _NO_TOKEN.search(reason):
            return cls(
                f"kafka.{cluster.name}: the provider of token_url gives no token: {reason}; correct client_id, "
                f"client_secret, scope, token_url of [kafka.{cluster.name}], or what they name"
            )
        whom = f" of {security.user}" if security.user else ""
        how = f" by {security.mechanism}" if security.mechanism else " by TLS"
        keys = ", ".join(sorted(security.values)) or "security_protocol"
        return cls(
            f"kafka.{cluster.name}: {cluster.bootstrap} refuses the login{whom}{how}: {reason}; correct {keys} of "
            f"[kafka.{cluster.name}], or what they name"
        )


class LoginInterrupted(TidemarkError):
    """Raised when a connection ended before a cluster answered to a login."""

    @classmethod
    def by(cls, cluster: Cluster, reason: str) -> LoginInterrupted:
        """Makes the error about *cluster*, for which the client gave this *reason*."""
        return cls(
            f"kafka.{cluster.name}: {cluster.bootstrap} ended the connection during the login, without a refusal: "
            f"{reason}; look at the broker's log, and compare security_protocol and sasl_mechanism of "
            f"[kafka.{cluster.name}] with its listener"
        )


class Refusals:
    """Keeps the last reasons for which a client could not log in.

    Attributes:
        last_reason: brokers, or the provider of tokens, refused the login.
        cut_off: the connection ended during the login.
    """

    def __init__(self) -> None:
        self.last_reason: str | None = None
        self.cut_off: str | None = None

    def __call__(self, error: KafkaError) -> None:
        """Receives an error of a client; the client calls it when polled."""
        if error.code() not in _OF_LOGIN:
            return
        if _CUT_OFF.search(error.str()) and not _NO_TOKEN.search(error.str()):
            self.cut_off = error.str()
        else:
            self.last_reason = error.str()

    def forget(self) -> None:
        """Forgets the reasons, after the client has logged in."""
        self.last_reason = self.cut_off = None

    def raise_unless_answered(self, error: KafkaError, cluster: Cluster) -> None:
        """Raises the last reason as `raise_for` does, unless *error* is the answer of a broker.

        A broker that answers has accepted the login, so the reasons are forgotten.
        """
        if error.code() <= NEWEST_LOCAL:
            self.raise_for(cluster)
        else:
            self.forget()

    def raise_for(self, cluster: Cluster) -> None:
        """Raises the last reason, if there is one.

        Raises:
            LoginDenied: the cluster refused the login.
            LoginInterrupted: the cluster ended the connection during the login.
        """
        if self.last_reason:
            raise LoginDenied.by(cluster, self.last_reason)
        if self.cut_off:
            raise LoginInterrupted.by(cluster, self.cut_off)


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
    """Returns the brokers and topics of *cluster*; the *client* has *refusals* as its `error_cb`.

    Raises:
        KafkaException: no broker answers *within_s* seconds.
        LoginDenied: the cluster refuses the login.
        LoginInterrupted: the cluster ended the connection during each login.
    """
    until = time.monotonic() + within_s
    for share in _SHARES:
        try:
            metadata = client.list_topics(timeout=min(share * within_s, max(0.01, until - time.monotonic())))
        except KafkaException as error:
            # librdkafka keeps errors of logins until it is polled, and passes them to error_cb then.
            client.poll(0)
            if refusals.last_reason:
                raise LoginDenied.by(cluster, refusals.last_reason) from None
            last = error
        else:
            refusals.forget()
            return metadata
    refusals.raise_for(cluster)
    raise last


def missing_right_of(code: int, topic: str, cluster: Cluster, operation: Operation) -> MissingRight | None:
    """Returns the error for the *code* of an answer, or None if the code is not about a missing right.

    Args:
        code: that of a KafkaError.
        topic: the topic of the request.
        cluster: the cluster that answered.
        operation: the operation on the topic that the request needs.
    """
    if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return missing_from(cluster, operation, f"topic {topic}")
    # Producers are idempotent here, for which older brokers want a right on the cluster itself.
    if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        return missing_from(cluster, Operation.IDEMPOTENT_WRITE, "cluster")
    return None


def missing_from(cluster: Cluster, operation: Operation, resource: str) -> MissingRight:
    """Returns the error for a right that *cluster* does not grant."""
    return MissingRight(Right(operation, resource, cluster.name), cluster.security.user, cluster.bootstrap)


def unauthorized_topic(error: Exception) -> str | None:
    """Returns the topic that *error* of Java's client denies, or None."""
    match = _TOPICS.search(text_with_causes(error))
    return match[1].strip() if match else None


def unauthorized_group(error: Exception) -> str | None:
    """Returns the group that *error* of Java's client denies, or None."""
    match = _GROUP.search(text_with_causes(error))
    return match[1].strip(".") if match else None


def login_refusal(error: Exception) -> str | None:
    """Returns why *error* of Java's client denies a login, or None."""
    match = _LOGIN.search(text_with_causes(error))
    return match[1].strip() if match else None


def text_with_causes(error: Exception) -> str:
    """Returns the text of *error*, its Java stack and its causes."""
    texts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(texts) < 10:
        texts += [str(cause), str(getattr(cause, "_stackTrace", "") or "")]
        cause = cause.__cause__
    return "\n".join(texts)
