"""Assigns records to the partitions of a topic by their keys, as other clients of Kafka do.

Sources: Kafka's Utils.murmur2 and BuiltInPartitioner.partitionForKey (3.9), librdkafka's
rd_kafka_msg_partitioner_consistent_random (2.16). These clients send a record without a key to any partition. Here its
number decides, so that it goes to the same partition when it is sent again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from tidemark.model.kinds.sink import Partitioner

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)


def partitions_of(keys: pl.Series, numbers: Iterable[int], partitions: int, partitioner: Partitioner) -> pl.Series:
    """Returns the partition of each record in a topic with so many *partitions*.

    Args:
        keys: the keys as text; null for a record without a key.
        numbers: a number for each record, which decides where one without a key goes.
        partitions: the number of the topic's partitions.
        partitioner: the rule of the clients.


    >>> partitions_of(pl.Series(["21", "", None]), [0, 1, 8], 5, Partitioner.MURMUR2).to_list()
    [0, 1, 3]
    """
    by_number = pl.Series([*numbers], dtype=pl.Int64) % partitions
    unique = keys.unique().drop_nulls()
    texts = [key.encode() for key in unique]
    if partitioner is Partitioner.MURMUR2:
        # Kafka clears the sign bit (Utils.toPositive).
        placed = (murmur2(texts) & np.uint32(0x7FFFFFFF)) % partitions
    else:
        # librdkafka treats an empty key as none.
        unique, texts = unique.filter(unique != ""), [text for text in texts if text]
        placed = np.fromiter(map(zlib.crc32, texts), np.uint32, len(texts)) % partitions
    by_key = keys.replace_strict(unique, pl.Series(placed, dtype=pl.Int64), default=None, return_dtype=pl.Int64)
    return by_key.zip_with(by_key.is_not_null(), by_number)


def murmur2(texts: Sequence[bytes]) -> npt.NDArray[np.uint32]:
    """Returns the 32-bit MurmurHash2 of each of *texts*, with Kafka's seed."""
    hashes = np.empty(len(texts), np.uint32)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    for length in np.unique(lengths).tolist():
        (rows,) = np.nonzero(lengths == length)
        padded = b"".join(texts[row].ljust(-(-length // 4) * 4, b"\0") for row in rows.tolist())
        words = np.frombuffer(padded, "<u4").reshape(rows.size, -1)
        mixed = words * _M
        mixed = (mixed ^ mixed >> np.uint32(24)) * _M
        hash_ = np.full(rows.size, (_SEED ^ length) & 0xFFFFFFFF, np.uint32)
        for word in range(length // 4):
            hash_ = hash_ * _M ^ mixed[:, word]
        if length % 4:
            # The bytes that fill no word are mixed in as they are.
            hash_ = (hash_ ^ words[:, -1]) * _M
        hash_ = (hash_ ^ hash_ >> np.uint32(13)) * _M
        hashes[rows] = hash_ ^ hash_ >> np.uint32(15)
    return hashes
