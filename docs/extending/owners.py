"""The wait for the legal department."""

from tidemark.account.owners.registry import Owner, register

register(
    Owner(
        name="legal_review",
        detail="the operator",
        says="{detail} waited {amount} for a legal review",
        proof="the times of its reviews",
        remedy="review sooner",
    )
)
