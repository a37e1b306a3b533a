"""A keyed record goes to the partition to which other clients of Kafka send it."""

from __future__ import annotations

import polars as pl

from tidemark.kernels.records.partitioners import murmur2, partitions_of
from tidemark.model.kinds.sink import Partitioner

OF_JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Of UtilsTest.testMurmur2 in Kafka's source."""
KEYS = ["user-1", "ä", "€uro", "", None, *OF_JAVA]
WORD = 0xFFFFFFFF


def by_hand(text: bytes) -> int:
    """Returns MurmurHash2 as Kafka's Utils.murmur2 calculates it, a byte after the other."""
    h = (0x9747B28C ^ len(text)) & WORD
    for place in range(0, len(text) // 4 * 4, 4):
        k = int.from_bytes(text[place : place + 4], "little") * 0x5BD1E995 & WORD
        k = (k ^ k >> 24) * 0x5BD1E995 & WORD
        h = (h * 0x5BD1E995 & WORD) ^ k
    if rest := text[len(text) // 4 * 4 :]:
        h = (h ^ int.from_bytes(rest, "little")) * 0x5BD1E995 & WORD
    h = (h ^ h >> 13) * 0x5BD1E995 & WORD
    return h ^ h >> 15


def test_murmur2_is_that_of_java() -> None:
    assert murmur2([key.encode() for key in OF_JAVA]).tolist() == [hash_ & WORD for hash_ in OF_JAVA.values()]
    texts = [bytes(range(200, 200 + length)) for length in range(50)]
    assert murmur2(texts).tolist() == [*map(by_hand, texts)]


def test_a_record_without_a_key_has_the_place_of_its_number() -> None:
    murmur = partitions_of(pl.Series(KEYS), range(7, 18), 5, Partitioner.MURMUR2).to_list()
    # Java takes the sign away by its bit: 973932308 of "21" has the remainder 3, -973932308 & 0x7fffffff has 0.
    expected = [(by_hand(key.encode()) & 0x7FFFFFFF) % 5 for key in KEYS if key is not None]
    assert murmur == [*expected[:4], (7 + 4) % 5, *expected[4:]]
    assert murmur[5] == 0
    # The CRC-32 of RFC 1952 (8.) is 0x352441c2 = 891568578 for "abc", and 0xe8b7be43 = 3904355907 for "a".
    crc = partitions_of(pl.Series(["abc", "a", "", None]), range(7, 11), 5, Partitioner.CRC32).to_list()
    assert crc == [3, 2, 9 % 5, 10 % 5]


def test_no_key_at_all_is_placed_by_numbers() -> None:
    for partitioner in Partitioner:
        assert partitions_of(pl.Series([None, None], dtype=pl.String), [4, 5], 3, partitioner).to_list() == [1, 2]
        assert partitions_of(pl.Series([], dtype=pl.String), [], 3, partitioner).to_list() == []
