"""A transaction of a producer: its records had arrived, and could not be read until it ended."""

from __future__ import annotations

from tidemark.account.owners.registry import Owner, register

OPEN_TRANSACTION = register(
    Owner(
        name="open_transaction",
        parent="topic",
        detail="SOURCE/PARTITION",
        says="a transaction kept records of {detail} from being read for {amount}",
        proof="the first look whose last stable offset was beyond the record, and the broker's stamp",
        remedy="end the producer's transaction, or shorten `transaction.timeout.ms` of the producer",
    )
)
