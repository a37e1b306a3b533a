"""Updates are compared by text if that is enough, else by identity."""

from __future__ import annotations

import hashlib
import math

import polars as pl
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from tidemark.api.shards import with_shards
from tidemark.kernels.updates.emission import STORED, identified, judged, with_value
from tidemark.semantics.change import Rule

UPDATES = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([None, "", "x", '"', "\u00e9"]),
        st.sampled_from([None, 0.0, -0.0, 1.0, math.nan, math.inf]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=12,
)
NOTHING = pl.DataFrame(schema=STORED)


def updates_of(rows: list[tuple[str, str | None, float | None, int, bool]]) -> pl.DataFrame:
    kinds = {
        "_key": pl.String,
        "word": pl.String,
        "number": pl.Float64,
        "_timestamp_ms": pl.Int64,
        "_deleted": pl.Boolean,
    }
    records = pl.DataFrame(rows, schema=kinds, orient="row").with_row_index("_offset")
    return with_value(records.with_columns(_partition=pl.lit(0), _task=pl.lit(0)), ["word", "number"])


@given(UPDATES, UPDATES, st.sampled_from(Rule))
def test_texts_decide_as_identities_do(first, second, rule):
    stored = judged(updates_of(first), NOTHING, rule).stored
    updates = updates_of(second)
    by_text, by_identity = judged(updates, stored, rule), judged(identified(updates), stored, rule)
    assert_frame_equal(by_text.emitted, by_identity.emitted, check_column_order=False)
    assert_frame_equal(by_text.suppressed, by_identity.suppressed, check_column_order=False)
    assert by_text.skipped == by_identity.skipped


def test_an_identity_has_the_columns_until_it_is_needed():
    updates = updates_of([("a", "x", 1.0, 0, False), ("a", "x", 1.0, 1, False)])
    assert updates["_identity"].to_list() == [{"word": "x", "number": 1.0}] * 2
    assert identified(updates)["_identity"].n_unique() == 1


def test_updates_for_a_shard_have_the_digest_of_their_value():
    places = {"_timestamp_ms": [1, 2, 3], "_partition": [0, 0, 0], "_offset": [0, 1, 2]}
    rows = pa.table({"order": ["a", "b", None], "status": ["new", None, "new"], **places})
    placed = pa.Table.from_batches(with_shards(("order",), ("status",), 1)(rows.to_batches())).to_pylist()
    assert [(row["_key"], row["_value"]) for row in placed] == [
        ("a", '{"status":"new"}'), ("b", '{"status":null}'), (None, '{"status":"new"}')
    ]  # fmt: skip
    canonical = [b"a1:s3:new", b"a1:n", b"a1:s3:new"]
    assert [row["_identity"] for row in placed] == [hashlib.sha256(value).hexdigest() for value in canonical]
