"""Emits changed values with polars, confluent-kafka and delta-rs, by hand.

A restart has lost the values, and a crash between its two commits repeats rows.
"""

from __future__ import annotations

import sys

import polars as pl
from confluent_kafka import Consumer
from deltalake import write_deltalake

RECORDS_AT_ONCE, WAIT_S = 100_000, 1.0
TYPES = {"id": pl.String, "status": pl.String, "amount": pl.Int64, "note": pl.String, "at": pl.Int64}
VALUE = pl.struct("status", "amount", "note")


def main(address: str, topic: str, group: str, table: str) -> None:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, **settings})
    consumer.subscribe([topic])
    last = pl.DataFrame(schema=TYPES)
    while True:
        messages = consumer.consume(RECORDS_AT_ONCE, WAIT_S)
        if not messages:
            continue
        updates = pl.read_ndjson(b"\n".join(message.value() for message in messages), schema=TYPES)
        rows = pl.concat([last, updates])
        is_change = rows.select(VALUE.ne_missing(VALUE.shift().over("id"))).to_series()
        write_deltalake(
            table, rows.filter(is_change & (pl.int_range(rows.height, eager=True) >= last.height)), mode="append"
        )
        last = rows.unique("id", keep="last")
        consumer.commit(asynchronous=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
