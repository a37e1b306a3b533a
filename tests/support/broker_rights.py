"""Grants rights at the broker of the tests."""

from __future__ import annotations

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)


def grant(admin: AdminClient, topic: str, whom: str, right: AclOperation) -> None:
    """Have *whom* do that with *topic*, and no one anything else."""
    acl = AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, whom, "*", right, AclPermissionType.ALLOW)
    for done in admin.create_acls([acl]).values():
        done.result(30)
