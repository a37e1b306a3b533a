"""Names rights that a Kafka cluster does not grant."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tidemark.errors import TidemarkError


class Operation(StrEnum):
    """Names operations of Kafka's ACLs. Read and Write include Describe."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"
    IDEMPOTENT_WRITE = "IdempotentWrite"


@dataclass(frozen=True)
class Right:
    """The right to do *operation* with *resource* of a *cluster*.

    *resource* is, for example, `topic readings`. For a right on the cluster itself it is `cluster`, as in Kafka.
    """

    operation: Operation
    resource: str
    cluster: str

    def __str__(self) -> str:
        """Formats it for people; `missing_right` reads it again."""
        return f"{self.operation} on {self.resource} of kafka.{self.cluster}"


_TEXT = re.compile(rf"MissingRight: no right ({'|'.join(Operation)}) on (.+?) of kafka\.([a-z0-9_]+)[;: ]")


class MissingRight(TidemarkError):
    """Raised when a cluster does not grant a necessary right."""

    def __init__(self, right: Right, user: str = "", address: str = "") -> None:
        whom = f" to {user}" if user else ""
        grant = acl(right, user, address)
        super().__init__(f"no right {right}; ask the administrator of that cluster to grant it{whom}: {grant}")
        self.right, self._user, self._address = right, user, address

    def __reduce__(self) -> tuple[type[MissingRight], tuple[Right, str, str]]:
        """Pickles the arguments, for an error in a Spark task."""
        return MissingRight, (self.right, self._user, self._address)


def acl(right: Right, user: str = "", address: str = "") -> str:
    """Returns the command of Kafka that grants *right* to *user*, at the broker with *address*.

    An administrator may need to add `--command-config`.
    """
    kind, _, name = right.resource.partition(" ")
    place = f"--{kind} {name}" if name else f"--{kind}"
    command = f"kafka-acls --bootstrap-server {address or 'HOST:PORT'} --add --allow-principal User:{user or 'NAME'}"
    return f"`{command} --operation {right.operation} {place}`"


def missing_right(reason: str) -> Right | None:
    """Returns the right that the *reason* of a failure names, or None.

    >>> missing_right("MissingRight: no right Read on topic readings of kafka.eu; ask")
    Right(operation=<Operation.READ: 'Read'>, resource='topic readings', cluster='eu')
    """
    match = _TEXT.match(reason)
    return None if match is None else Right(Operation(match[1]), match[2], match[3])
