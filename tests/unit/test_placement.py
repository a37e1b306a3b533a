"""Keys are placed by a hash that anybody can calculate."""

from __future__ import annotations

import hashlib

import polars as pl

from tidemark.kernels.columns.placement import shard_of

TEXTS = ["", "a", "å", '{"id":"x"}', '{"grp":null}', "k" * 1_000]


def test_a_key_is_where_its_md5_says():
    numbers = [int.from_bytes(hashlib.md5(text.encode()).digest()[8:], "little") for text in TEXTS]
    for shards in (1, 2, 7):
        assert shard_of(pl.Series(TEXTS), shards).to_list() == [number % shards for number in numbers]


def test_some_places_are_published():
    # From RFC 1321: MD5("") ends in e9800998ecf8427e, and MD5("abc") in d6963f7d28e17f72.
    assert shard_of(pl.Series(["", "abc"]), 1_000).to_list() == [193, 838]


def test_no_keys_have_no_place():
    assert shard_of(pl.Series([], dtype=pl.String), 3).to_list() == []
