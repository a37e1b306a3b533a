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


def grant(
    admin: AdminClient, name: str, whom: str, right: AclOperation, kind: ResourceType = ResourceType.TOPIC
) -> None:
    """Have *whom* do that with the topic *name*, or with something else of a *kind*, and no one anything else."""
    acl = AclBinding(kind, name, ResourcePatternType.LITERAL, whom, "*", right, AclPermissionType.ALLOW)
    for done in admin.create_acls([acl]).values():
        done.result(30)
