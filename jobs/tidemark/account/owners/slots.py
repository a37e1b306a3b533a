"""A batch's wait for slots of Spark, while another stream of the process held them."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

SLOTS = register(
    Owner(
        name="slots",
        detail="the stream that held them",
        proof="the stream's segments, with the stream that held the slots",
        remedy='give the drivers more cores, or the stream a driver of its own (`driver = "own"`)',
    )
)
