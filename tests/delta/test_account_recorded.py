"""What a driver has recorded is enough to say to whom each ms of a result belongs.

The clock of these plays stands still but for writes, which take 10 ms each, and 20 ms between a look and its batch.
"""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from support.play import BOOTED_MS, Play, ms
from support.separate_executors import Apart
from support.topologies import NEWEST, aggregate, operators, repartition, sink
from tidemark.account.facts import Facts
from tidemark.account.ledger import Ledger
from tidemark.account.recorded import Recorded
from tidemark.account.records import record_parts
from tidemark.account.windows import window_parts
from tidemark.control.folder import Heartbeat, StreamState, TimeTold
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.tables.catalog import HEARTBEATS, TABLES
from tidemark.storage.delta.tables import scan
from tidemark.stream.driver.heartbeats import Heartbeats

TOML = NEWEST + operators(
    by_id=repartition("events", key=["id"], columns=["v"]),
    far=sink("by_id", table="all_of_it", sub_topology="far"),
    sums=aggregate(key=["id"], window={"tumbling": "5 s"}, aggregates={"n": "count(*)"}, strategy="on_window_close"),
    closed=sink("sums", table="closed"),
)


@pytest.fixture(scope="module", params=[1, 2])
def play(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Play:
    """A batch each 5 s of a record that was sent 1.5 s before its look, and had arrived 1 s before it.

    The sub-topology `far` looks half a second after the batch. In shards it is all the same.
    """
    play = Play(TOML, tmp_path_factory.mktemp("recorded")).in_shards(request.param, Apart)
    play.write_ms = 10
    for n in range(5):
        at_ms = ms(10 + 5 * n)
        row = play.row("events", at_ms - 1_500, key="a", id="a", v=n)
        play.batch([{**row, "stamped_ms": at_ms - 1_000}], at_ms=at_ms, now_ms=at_ms + 20)
        play.hop("far", at_ms=at_ms + 500)
    for sub in play.topology.sub_topologies:
        history = Heartbeats(play.table("heartbeats", sub.name).parent, topology="play", sub_topology=sub.name)
        told = TimeTold(0, play.now_ms - BOOTED_MS, (), play.timeline(sub.name).open())
        beat = Heartbeat(
            state=StreamState.RUNNING, epoch=1, launch_id="", at_ms=play.now_ms, pid=1, host="h", told=told
        )
        history.write_if_due(beat, thread_id=None, batch_started_at_ms=None)
    return play


@pytest.fixture(scope="module")
def facts(play: Play) -> Facts:
    names = ("batches", "operator_batches", "partition_batches", "operator_windows", "heartbeats")
    subs = [sub.name for sub in play.topology.sub_topologies]
    tables = {name: pl.concat(scan(play.table(name, sub)).collect() for sub in subs) for name in names}
    return Recorded(**tables).facts(play.topology)


def account(parts: pl.DataFrame, results: pl.DataFrame, place: str, batch_id: int) -> Counter[str]:
    """Returns the parts of the results of a batch at a place, by OWNER DETAIL."""
    rows = results.with_row_index("result").cast({"result": pl.Int64})
    found = rows.filter(pl.col("place") == place, pl.col("batch_id") == batch_id)
    assert found.height == 1
    return Counter(
        {
            f"{owner} {detail}".strip(): length_ms
            for owner, detail, length_ms in parts.join(found, on="result").select("owner", "detail", "ms").rows()
        }
    )


PRODUCED = {"producer events/0": 500}
WAITED = {"trigger": 1_020, "target journal": 10, "target changes": 10}


def test_a_record_is_accounted_for_from_its_producer_to_its_table(facts: Facts) -> None:
    parts = record_parts(Ledger.of(facts))
    assert account(parts, facts.results, "by_id", 2) == PRODUCED | WAITED | {"target hop_by_id": 10}
    assert account(parts, facts.results, "board", 2) == PRODUCED | WAITED | {
        "target hop_by_id": 10, "target changes_of_board": 10,
    }  # fmt: skip


def test_behind_a_hop_the_account_goes_on_in_the_batch_that_wrote(facts: Facts) -> None:
    # The hop had the record at 50 ms after the look of its writer, and `far` looked at 500.
    assert account(record_parts(Ledger.of(facts)), facts.results, "far", 2) == PRODUCED | {
        "trigger": 1_020 + 450, "target journal": 10 + 10, "target changes": 10, "target hop_by_id": 10,
        "target all_of_it": 10,
    }  # fmt: skip


def test_a_result_of_a_window_was_held_until_its_window_closed(facts: Facts) -> None:
    # The record of 13.5 s came with batch 1, whose work ended at 15.02 s, in the window until 15 s. The look at 20 s
    # found the record that let it close.
    held = {"window sums": 4_980}
    written = {f"target {name}": 10 for name in ("journal", "changes", "hop_by_id", "changes_of_board", "closed")}
    found = account(record_parts(Ledger.of(facts)), facts.results, "closed", 2)
    assert found == PRODUCED | {"trigger": 1_020 + 20} | held | written


def test_a_window_is_accounted_for_from_its_end(facts: Facts) -> None:
    # The bound ends at 11 s, and the first record after it is that of 13.5 s.
    assert account(window_parts(Ledger.of(facts)), facts.windows, "board", 1) == {
        "bound events": 1_000, "next_record events/0": 2_500,
    } | PRODUCED | WAITED | {"target hop_by_id": 10, "target changes_of_board": 10}  # fmt: skip


def test_nothing_is_unknown_but_the_time_before_the_first_batch(facts: Facts) -> None:
    ledger = Ledger.of(facts)
    assert window_parts(ledger).filter(pl.col("owner") == "unknown").is_empty()
    unknown = record_parts(ledger).filter(pl.col("owner") == "unknown")
    results = facts.results.with_row_index("result").cast({"result": pl.Int64})
    assert {*unknown.join(results, on="result")["read_batch"]} == {0}


def test_a_stream_without_rows_has_no_facts(play: Play) -> None:
    names = ("batches", "operator_batches", "partition_batches", "operator_windows", "heartbeats")
    empty = {name: pl.DataFrame(arrow_schema(TABLES.get(name, HEARTBEATS)).empty_table()) for name in names}
    assert record_parts(Ledger.of(Recorded(**empty).facts(play.topology))).is_empty()
