"""Queries of teams with `tidemark.api`: real streams, tables and replays.

Streams come from files; replays are done by hand.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import rollup
from support.control_files import unlisted
from tidemark import api
from tidemark.api.application import ApplicationOptions, run_application
from tidemark.control.folder import Control
from tidemark.errors import Contradiction, InvalidArgument, InvalidTimestamp
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import instant_ms, iso
from tidemark.recorded_jobs.queries import recorded_topology
from tidemark.semantics.change import Rule
from tidemark.storage.files import Files
from tidemark.stream.journal.entries import Journal

NOON = instant_ms("2026-03-01T12:00")
SCHEMA = "order_id string, status string, ordered_at timestamp, partition int, offset bigint"
COMPARED = {"key": ["order_id"], "columns": ["status"], "timestamp": "ordered_at", "order": ("partition", "offset")}


@dataclass
class Clock:
    """Stands still unless a test moves it."""

    now_ms: int = NOON

    def __call__(self) -> int:
        return self.now_ms


@dataclass
class Shop:
    """A query `orders` of the topology `shop`, one file per batch."""

    spark: SparkSession
    home: Path
    files: int = 0

    def __post_init__(self) -> None:
        (self.home / "feed").mkdir()

    @property
    def names(self) -> dict[str, Any]:
        return {"warehouse": self.home / "warehouse", "topology": "shop", "sub_topology": "orders"}

    def orders(self, *rows: tuple[str | None, str, int | None]) -> None:
        """Writes the next batch: order, status, and record time.

        Record time is in ms after noon; each record has the next offset of partition 0.
        """
        first = self.files * 100
        lines = [
            {"order_id": order, "status": status, "partition": 0, "offset": first + n}
            | ({} if at is None else {"ordered_at": iso(NOON + at)})
            for n, (order, status, at) in enumerate(rows)
        ]
        file = self.home / "feed" / f"{self.files}.json"
        file.write_text("\n".join(map(json.dumps, lines)))
        os.utime(file, (1_000 + self.files, 1_000 + self.files))  # Spark reads the oldest first
        self.files += 1

    def stream(self) -> DataFrame:
        return self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.home / "feed"))

    def run(self, function: Callable[[DataFrame, int], None], name: str = "orders") -> None:
        """Run all batches that there are; raises what the query fails with."""
        writer = self.stream().writeStream.queryName(name).foreachBatch(function)
        checkpoint = str(self.home / "checkpoint")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    def forget_end_of(self, batch_id: int) -> None:
        """Restores the checkpoint to the moment before a batch's end.

        A crash right before Spark noted the end would leave it so.
        """
        for file in (self.home / "checkpoint" / "commits").glob(f"*{batch_id}*"):
            file.unlink()

    @property
    def control(self) -> Path:
        return Layout(self.home / "warehouse").control("shop", "orders")

    def path(self, table: str, sub_topology: str = "orders") -> Path:
        return Layout(self.home / "warehouse").stream_table("shop", sub_topology, table)

    def rows(self, table: str, *columns: str, sub_topology: str = "orders") -> list[tuple[Any, ...]]:
        """These columns of all rows, sorted; instants as ms after noon."""
        found = DeltaTable(self.path(table, sub_topology)).to_pyarrow_table().select(columns).to_pylist()
        return sorted((tuple(map(after_noon, row.values())) for row in found), key=str)

    def tasks(self, *fields: str) -> list[tuple[Any, ...]]:
        """These fields of all measured tasks, sorted."""
        found = DeltaTable(self.path("operator_batches")).to_pyarrow_table(columns=["tasks"]).to_pylist()
        tasks = [task for row in found for task in row["tasks"] or () if task["n"] is not None]
        return sorted((tuple(task[name] for name in fields) for task in tasks), key=str)


def after_noon(value: Any) -> Any:
    return instant_ms(value.isoformat()) - NOON if hasattr(value, "isoformat") else value


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path)


def offsets(rows: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in rows.collect())


class Written:
    """A team's function that writes changes and can fail afterwards."""

    def __init__(self, shop: Shop, state: api.State | None = None) -> None:
        self.state = state or api.State(**shop.names, operator="status")
        self.batches: list[list[int]] = []
        self.fails = False

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        with api.changed(rows, batch_id, **COMPARED, state=self.state) as news:
            self.batches.append(offsets(news))
            if self.fails:
                msg = "the lake is full"
                raise OSError(msg)


# measured


def test_latency_is_measured_when_the_work_is_done(shop):
    shop.orders(("a", "new", -1_000), ("b", "new", -3_000), ("c", "new", 500))
    clock = Clock(NOON - 250)

    def work(rows: DataFrame, batch_id: int) -> None:
        clock.now_ms += 250

    shop.run(api.measured(work, **shop.names, operator="board", timestamp="ordered_at", clock=clock))

    (latency,) = shop.rows("operator_batches", "n", "min_ms", "max_ms", "sum_ms", "negative_n", "queued_ms")
    assert latency == (3, -500, 3_000, 3_500, 1, 0)
    assert shop.rows("operator_batches", "operator", "kind", "level") == [("board", "sink", "info")]
    assert shop.tasks("task_id", "partition", "n", "sum_ms") == [("orders_0", 0, 3, 3_500)]
    assert shop.rows("operator_batches", "decided_at", "started_at", "finished_at") == [(-250, -250, 0)]
    # ln 1000 / ln 1.02 = 348.8, so bucket 1 + 349; ln 3000 and ln 500 likewise
    buckets = [{"bucket": -315, "n": 1}], [{"bucket": 350, "n": 1}, {"bucket": 406, "n": 1}]
    before, after = (2, 1_000, 3_000, 4_000, 0), (1, -500, -500, -500, 1)
    columns = ("n", "min_ms", "max_ms", "sum_ms", "negative_n", "window_start", "finished_at", "buckets")
    assert shop.rows("latency_minutes", *columns) == [(*after, 0, 0, buckets[0]), (*before, -60_000, 0, buckets[1])]
    assert shop.rows("batches", "batch_id", "records_in", "duration_ms", "finished_at") == [(0, 3, 250, 0)]


def test_a_record_without_a_usable_time_counts_without_latency(shop, caplog):
    shop.orders(("a", "new", -1_000), ("b", "new", None), ("c", "new", -NOON - 1))

    shop.run(api.measured(ignore, **shop.names, operator="board", timestamp="ordered_at", clock=Clock()))

    assert shop.rows("operator_batches", "n", "max_ms") == [(1, 1_000)]
    assert shop.rows("latency_minutes", "n") == [(1,)]
    assert shop.rows("operator_batches", "operator", "records_in", "passed", "emitted", "quarantined") == [
        ("board", 3, 3, 0, 0)
    ]
    assert "batch 0 of board: 2 records have no usable ordered_at" in caplog.text


def test_partitions_are_tasks(shop):
    rows = shop.spark.createDataFrame([(0, NOON - 10), (3, NOON - 20), (3, NOON - 40)], "partition int, at_ms bigint")
    each_batch = api.measured(
        ignore, **shop.names, operator="board", timestamp="at", partition="partition", clock=Clock()
    )

    each_batch(rows.selectExpr("partition", "timestamp_millis(at_ms) as at"), 0)

    assert shop.tasks("task_id", "n", "sum_ms") == [("orders_0", 1, 10), ("orders_3", 2, 60)]
    assert shop.rows("operator_batches", "n", "min_ms", "max_ms", "sum_ms") == [(3, 10, 40, 70)]


def test_a_repeated_batch_is_recorded_once_with_the_first_clock(shop):
    shop.orders(("a", "new", -1_000))
    shop.orders(("b", "new", -2_000))
    clock, ran = Clock(), []
    each_batch = api.measured(
        lambda rows, batch_id: ran.append(batch_id),
        **shop.names,
        operator="board",
        timestamp="ordered_at",
        clock=clock,
    )
    shop.run(each_batch)
    shop.forget_end_of(1)
    clock.now_ms += 60_000

    shop.run(each_batch)

    assert ran == [0, 1, 1]
    assert shop.rows("operator_batches", "batch_id", "max_ms", "finished_at") == [(0, 1_000, 0), (1, 2_000, 0)]
    assert shop.rows("batches", "batch_id") == [(0,), (1,)]
    assert shop.rows("operator_batches", "batch_id") == [(0,), (1,)]


def test_an_uncommitted_batch_is_committed_by_its_repetition(shop):
    shop.orders(("a", "new", -1_000))
    clock = Clock()
    names = {**shop.names, "operator": "board", "timestamp": "ordered_at"}
    shop.run(api.measured(ignore, **names, clock=clock))
    shop.forget_end_of(0)
    shutil.rmtree(shop.path("latency_minutes"))  # as if the driver had died before it committed there
    clock.now_ms += 60_000

    shop.run(api.measured(ignore, **names, clock=clock))

    assert shop.rows("latency_minutes", "n", "finished_at", "buckets") == [(1, 0, [{"bucket": 350, "n": 1}])]
    assert shop.rows("operator_batches", "n", "finished_at") == [(1, 0)]


ROW = ("operator", "kind", "records_in", "emitted", "suppressed", "passed", "n", "max_ms")


@pytest.mark.parametrize("shards", [1, 2])
def test_an_operator_that_is_measured_and_judges_changes_has_one_row(shop, shards):
    shop.orders(("a", "new", -1_000), ("a", "new", -500), ("b", "new", -3_000))
    written = Written(shop, api.State(**shop.names, operator="orders", shards=shards))
    each_batch = api.measured(written, **shop.names, operator="orders", timestamp="ordered_at", clock=Clock())
    with api.listen(shop.spark, warehouse=shop.home / "warehouse", topology="shop"):
        shop.run(each_batch)
    # The listener calls the query `orders`, too, and adds the source alone.
    assert shop.rows("operator_batches", *ROW) == [
        ("orders", "table", 3, 2, 1, 0, 3, 3_000),
        ("orders:feed", "source", 3, 0, 0, 3, None, None),
    ]


def test_counts_of_a_batch_that_cannot_be_measured_are_kept(shop):
    shop.orders(("a", "new", -1_000), ("a", "new", -500), ("b", "new", -3_000))
    written = Written(shop, api.State(**shop.names, operator="board"))
    shop.run(api.measured(written, **shop.names, operator="board", timestamp="offset"))
    assert shop.rows("operator_batches", *ROW) == [("board", "table", 3, 2, 1, 0, None, None)]


def test_a_batch_that_cannot_be_measured_goes_on_and_says_so(shop, caplog):
    shop.orders(("a", "new", -1_000))
    done = []

    shop.run(
        api.measured(
            lambda rows, batch_id: done.append(offsets(rows)), **shop.names, operator="board", timestamp="offset"
        )
    )

    assert done == [[0]]
    assert "batch 0 of orders/board was not measured" in caplog.text
    assert "a record time must be a TIMESTAMP, got offset: bigint" in caplog.text


def test_a_strict_batch_that_cannot_be_measured_fails(shop):
    shop.orders(("a", "new", -1_000))
    with pytest.raises(StreamingQueryException, match="a record time must be a TIMESTAMP"):
        shop.run(api.measured(ignore, **shop.names, operator="board", timestamp="offset", strict=True))


def test_what_the_function_raises_ends_the_batch_unmeasured(shop):
    shop.orders(("a", "new", -1_000))

    def fail(rows: DataFrame, batch_id: int) -> None:
        msg = "the lake is full"
        raise OSError(msg)

    with pytest.raises(StreamingQueryException, match="the lake is full"):
        shop.run(api.measured(fail, **shop.names, operator="board", timestamp="ordered_at"))
    assert not shop.path("operator_batches").exists()


def test_a_batch_without_records_writes_nothing(shop):
    none = shop.spark.createDataFrame([], SCHEMA)
    api.measured(ignore, **shop.names, operator="board", timestamp="ordered_at", strict=True)(none, 0)
    assert not shop.path("batches").exists()


def test_two_operators_of_one_query_share_tables_and_batches(shop):
    shop.orders(("a", "new", -1_000))
    shop.orders(("b", "new", -2_000))
    names = {**shop.names, "timestamp": "ordered_at", "clock": Clock(), "strict": True}
    inner = api.measured(ignore, **names, operator="inner")

    shop.run(api.measured(inner, **names, operator="outer"))

    assert shop.rows("operator_batches", "batch_id", "operator", "max_ms") == [
        *((0, "inner", 1_000), (0, "outer", 1_000)),
        *((1, "inner", 2_000), (1, "outer", 2_000)),
    ]
    assert shop.rows("batches", "batch_id") == [(0,), (1,)]


def test_a_new_checkpoint_under_an_old_name_is_refused(shop):
    shop.orders(("a", "new", -1_000))
    shop.orders(("b", "new", -1_000))
    each_batch = api.measured(ignore, **shop.names, operator="board", timestamp="ordered_at", strict=True)
    shop.run(each_batch)
    shutil.rmtree(shop.home / "checkpoint")
    with pytest.raises(StreamingQueryException, match="continues with batch 0, but batch 1 was recorded before"):
        shop.run(each_batch)


def test_a_name_that_cannot_be_a_folder_is_refused(shop):
    names = {**shop.names, "sub_topology": "a/b"}
    with pytest.raises(InvalidArgument, match="got 'a/b'"):
        api.measured(ignore, **names, operator="board", timestamp="ordered_at")


def test_the_reports_have_what_was_measured(shop):
    shop.orders(("a", "new", -1_000), ("b", "new", -3_000))
    shop.run(api.measured(ignore, **shop.names, operator="board", timestamp="ordered_at", clock=Clock()))

    layout = Layout(shop.home / "warehouse")
    rollup.run(layout, "shop")

    table = DeltaTable(layout.report_table("shop", "latency_rollup"))
    rows = table.to_pyarrow_table(filters=[("scope", "=", "operator")]).sort_by("interval_end").to_pylist()
    assert [(row["sub_topology"], row["operator"], row["grain"], row["n"], row["avg_ms"]) for row in rows] == [
        ("orders", "board", grain, 2, 2_000.0) for grain in ("minute", "hour", "day")
    ]


# changed


def test_only_rows_that_say_something_new_are_handed_out(shop):
    shop.orders(("a", "new", 1), ("a", "new", 2), ("b", "new", 1), (None, "new", 1))
    shop.orders(("a", "new", 3), ("a", "paid", 4), ("b", "new", 1), ("a", "new", 5))
    written = Written(shop)

    shop.run(written)

    # a row without a key cannot be judged; b's second one has the time of its first, which tells (KAFKA-12508)
    assert written.batches == [[0, 2, 3], [101, 102, 103]]
    assert shop.rows("changes", "batch_id", "seq", "key", "value", "timestamp", "old_timestamp", "source_offset") == [
        (0, 0, "a", '{"status":"new"}', 1, None, 0),
        (0, 1, "b", '{"status":"new"}', 1, None, 2),
        (1, 0, "a", '{"status":"paid"}', 4, 1, 101),
        (1, 1, "b", '{"status":"new"}', 1, 1, 102),
        (1, 2, "a", '{"status":"new"}', 5, 4, 103),
    ]
    suppressed = ("batch_id", "key", "n", "first_offset", "last_offset", "old_timestamp", "max_timestamp")
    assert shop.rows("suppressed", *suppressed) == [(0, "a", 1, 1, 1, 1, 2), (1, "a", 1, 100, 100, 1, 3)]
    outcomes = ("batch_id", "operator", "kind", "records_in", "emitted", "suppressed", "passed")
    assert shop.rows("operator_batches", *outcomes) == [
        (0, "status", "table", 4, 2, 1, 1),
        (1, "status", "table", 4, 3, 1, 0),
    ]


def test_an_update_whose_output_failed_is_handed_out_again(shop):
    shop.orders(("a", "new", 1))
    written = Written(shop)
    written.fails = True
    with pytest.raises(StreamingQueryException, match="the lake is full"):
        shop.run(written)
    assert shop.rows("changes", "key") == []

    written.fails = False
    shop.run(written)

    assert written.batches == [[0], [0]]
    assert shop.rows("changes", "key") == [("a",)]


@pytest.mark.parametrize("restarted", [True, False], ids=["in a new process", "in the same one"])
def test_a_batch_repeated_after_its_state_moved_gives_its_rows(shop, restarted):
    shop.orders(("a", "new", 1))
    shop.orders(("a", "paid", 5), ("a", "paid", 2))  # the first would be unchanged, were the second known already
    written = Written(shop)
    shop.run(written)
    shop.forget_end_of(1)
    again = Written(shop) if restarted else written

    shop.orders(("a", "paid", 4), ("a", "sent", 5))
    shop.run(again)

    assert again.batches[-2:] == [[100, 101], [201]]
    assert shop.rows("changes", "batch_id", "value") == [
        (0, '{"status":"new"}'),
        (1, '{"status":"paid"}'),
        (1, '{"status":"paid"}'),
        (2, '{"status":"sent"}'),
    ]
    assert shop.rows("suppressed", "batch_id", "n") == [(2, 1)]


def test_a_state_that_missed_a_batch_is_read_anew(shop):
    one, other = (api.State(**shop.names, operator="status") for _ in range(2))
    reached: list[list[int]] = []
    for batch_id, (state, status) in enumerate(((one, "new"), (other, "paid"), (one, "new"))):
        write(order(shop, status, at=batch_id), batch_id, state, reached)
    assert reached == [[0], [1], [2]]
    assert shop.rows("changes", "batch_id", "old_timestamp") == [(0, None), (1, 0), (2, 1)]


def test_a_repeated_batch_with_other_rows_is_refused_early(shop):
    state, reached = api.State(**shop.names, operator="status"), []
    write(order(shop, "new", at=0), 0, state, reached)
    with pytest.raises(Contradiction, match="batch 0 of status sent other updates"):
        write(order(shop, "paid", at=0), 0, state, reached)
    assert reached == [[0]]


def test_a_batch_before_those_of_the_state_is_refused_early(shop):
    shop.orders(("a", "new", 1))
    shop.orders(("a", "paid", 2))
    written = Written(shop)
    shop.run(written)
    shutil.rmtree(shop.home / "checkpoint")
    with pytest.raises(StreamingQueryException, match="continues with batch 0, but batch 1 was recorded before"):
        shop.run(Written(shop))
    assert written.batches == [[0], [100]]


def test_rows_that_cannot_be_judged_are_refused_before_writing(shop):
    state = api.State(**shop.names, operator="status")
    timeless = shop.spark.createDataFrame([("a", "new", None, 0, 0)], SCHEMA)
    with pytest.raises(InvalidTimestamp, match="got 1 rows without a usable ordered_at"):
        write(timeless, 0, state, [])
    nameless = shop.spark.createDataFrame([(None, "new", None, 0, 7), (None, "new", None, 0, 7)], SCHEMA)
    with pytest.raises(InvalidArgument, match="partition and offset must identify a row of the batch"):
        write(nameless, 0, state, [])


def test_states_of_two_operators_do_not_mix(shop):
    shop.orders(("a", "new", 1))
    shop.run(Written(shop))
    other = Written(shop, api.State(**shop.names, operator="other", rule=Rule.VALUE_ONLY))
    shop.forget_end_of(0)
    shop.run(other)
    assert other.batches == [[0]]
    assert shop.rows("changes", "operator", "key") == [("other", "a"), ("status", "a")]


# changed, in shards


class Shared(Written):
    """The same with its keys in shards."""

    def __init__(self, shop: Shop, shards: int = 2) -> None:
        super().__init__(shop, api.State(**shop.names, operator="status", shards=shards))


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows that the driver gets from Spark each time."""
    numbers: list[int] = []
    to_arrow, collect = DataFrame.toArrow, DataFrame.collect

    def counted(fetch: Callable[[DataFrame], Any]) -> Callable[[DataFrame], Any]:
        def fetch_and_count(rows: DataFrame) -> Any:
            got = fetch(rows)
            numbers.append(len(got))
            return got

        return fetch_and_count

    for kind in (DataFrame, type(SparkSession.getActiveSession().range(1))):
        monkeypatch.setattr(kind, "toArrow", counted(to_arrow if kind is DataFrame else kind.toArrow))
        monkeypatch.setattr(kind, "collect", counted(collect if kind is DataFrame else kind.collect))
    return numbers


def changed_by_hand(batches: list[list[tuple[str, str, int]]]) -> list[list[int]]:
    """Returns the offsets of rows that change the status of their order."""
    statuses: dict[str, str] = {}
    changed: list[list[int]] = []
    for number, rows in enumerate(batches):
        changed.append([])
        for n, (order, status, _) in enumerate(rows):
            if statuses.get(order) != status:
                changed[-1].append(number * 100 + n)
            statuses[order] = status
    return changed


def test_shards_change_no_answer_and_bring_no_key_to_the_driver(shop, fetched):
    chance = Random(1)
    batches: list[list[tuple[str, str, int]]] = []
    for number in range(3):
        orders = [chance.randrange(30) for _ in range(60)]
        batches.append([(f"o{order}", chance.choice("xy"), 100 * number + n) for n, order in enumerate(orders)])
    handed_out: list[list[int]] = []
    for rows in batches:
        shop.orders(*rows)
        each = Shared(shop)  # as after a restart
        shop.run(each)
        handed_out += each.batches

    assert handed_out == changed_by_hand(batches)
    # A batch fetches a line with checks and an answer of each shard; the test itself what was handed out.
    assert fetched == [n for batch in handed_out for n in (1, 2, len(batch))]
    emitted = sum(map(len, handed_out))
    counts = shop.rows("operator_batches", "emitted", "suppressed")
    assert (sum(n for n, _ in counts), sum(n for _, n in counts)) == (emitted, 180 - emitted)
    assert shop.rows("changes", "source_offset") == sorted(((n,) for batch in handed_out for n in batch), key=str)
    assert len({*shop.rows("changes", "batch_id", "seq")}) == emitted
    control = Layout(shop.home / "warehouse").control("shop", "orders") / "changed" / "status"
    assert {type(rows) for rows in Journal(control / "journal", "data").newest().tables.values()} == {Files}
    # State runs grow geometrically, and those of earlier batches are gone.
    assert len([*control.rglob("*.run")]) <= 2 * 4


@pytest.mark.long  # five runs of a query: a crash before and after the state moved, and other rows
def test_an_interrupted_batch_in_shards_is_repeated_exactly(shop):
    shop.orders(("a", "new", 1), ("b", "new", 1))
    shop.orders(("a", "paid", 5), ("a", "paid", 6), ("b", "new", 7))
    first = Shared(shop)
    shop.run(first)
    assert first.batches == [[0, 1], [100]]

    shop.forget_end_of(1)  # killed after its state was written
    again = Shared(shop)
    again.fails = True
    with pytest.raises(StreamingQueryException, match="the lake is full"):
        shop.run(again)
    again.fails = False
    shop.orders(("a", "paid", 8), ("b", "sent", 8))
    shop.run(again)

    assert again.batches == [[100], [100], [201]]
    assert unlisted(shop.control) == []
    assert shop.rows("changes", "batch_id", "key", "source_offset") == [
        (0, "a", 0), (0, "b", 1), (1, "a", 100), (2, "b", 201)
    ]  # fmt: skip
    assert sum(n for _, n in shop.rows("suppressed", "batch_id", "n")) == 3
    with pytest.raises(Contradiction, match="batch 2 of status sent other updates"):
        write(order(shop, "lost", at=9), 2, again.state, [])


@pytest.mark.long  # the state is made of `changes` twice
def test_another_number_of_shards_goes_on_with_the_same_states(shop):
    shop.orders(("a", "new", 1), ("b", "new", 1), (None, "new", 1))
    shop.run(Written(shop))
    handed_out = []
    for shards in (2, 3):
        shop.orders(("a", "new", 2), ("b", f"{shards}", 2 + shards), ("c", "new", shards))
        shared = Shared(shop, shards)
        shop.run(shared)
        handed_out += shared.batches
    assert handed_out == [[101, 102], [201]]


def test_a_map_is_compared_in_shards_too(shop):
    state, reached = api.State(**shop.names, operator="status", shards=2), []
    updates = [("a", {"step": "new"}, 0), ("a", {"step": "new"}, 1), ("a", {"step": "paid"}, 2)]
    rows = shop.spark.createDataFrame(updates, "order_id string, status map<string, string>, offset bigint")
    placed = rows.withColumn("partition", F.lit(0)).withColumn("ordered_at", F.timestamp_millis(F.col("offset")))
    write(placed, 0, state, reached)
    assert reached == [[0, 2]]


# listen


def test_a_listener_records_batches_of_an_unchanged_query(shop):
    shop.orders(("a", "new", 1_000), ("b", "new", 3_000))
    shop.orders(("c", "new", 9_000))
    with api.listen(shop.spark, warehouse=shop.home / "warehouse", topology="shop"):
        marked = shop.stream().withWatermark("ordered_at", "1 second").writeStream.queryName("orders")
        checkpointed = marked.foreachBatch(lambda rows, batch_id: rows.count() and None)
        checkpointed.option("checkpointLocation", str(shop.home / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()

    batches = shop.rows("batches", "batch_id", "records_in", "watermark")
    assert batches[:2] == [(0, 2, None), (1, 1, 2_000)]
    assert all(duration > 0 for (duration,) in shop.rows("batches", "duration_ms"))
    assert (1, None, None, 2_000) in shop.rows("partition_batches", "batch_id", "source", "partition", "watermark")


def test_a_measured_query_with_a_listener_has_one_row_per_batch(shop):
    shop.orders(("a", "new", -1_000))
    shop.orders(("b", "new", -1_000))
    each_batch = api.measured(ignore, **shop.names, operator="board", timestamp="ordered_at", clock=Clock())
    with api.listen(shop.spark, warehouse=shop.home / "warehouse", topology="shop"):
        shop.run(each_batch)
    shop.orders(("c", "new", -1_000))
    shop.run(each_batch)

    assert shop.rows("batches", "batch_id", "records_in") == [(0, 1), (1, 1), (2, 1)]
    by_the_stopped_clock = [started_at == 0 for _, started_at in shop.rows("batches", "batch_id", "started_at")]
    assert by_the_stopped_clock == [False, False, True]
    of_board = [row for row in shop.rows("operator_batches", "batch_id", "operator", "n") if row[1] == "board"]
    assert of_board == [(0, "board", 1), (1, "board", 1), (2, "board", 1)]
    assert unlisted(shop.control) == []


# The digest is the beginning of `printf 'nightly orders' | sha256sum`.
@pytest.mark.parametrize(("name", "filed"), [(None, None), ("nightly orders", "nightly_orders-93262f34ceda034b")])
def test_a_query_without_a_name_is_filed_under_its_id_and_one_with_any_name_under_that(shop, name, filed):
    shop.orders(("a", "new", 1))
    with api.listen(shop.spark, warehouse=shop.home / "warehouse", topology="shop"):
        writer = shop.stream().writeStream.foreachBatch(ignore)
        writer = writer.queryName(name) if name else writer
        checkpointed = writer.option("checkpointLocation", str(shop.home / "checkpoint"))
        query = checkpointed.trigger(availableNow=True).start()
        query.awaitTermination()
    assert shop.rows("batches", "batch_id", sub_topology=filed or str(query.id)) == [(0,)]


def test_a_listener_that_cannot_write_fails_no_query(shop, caplog):
    shop.orders(("a", "new", 1))
    (shop.home / "warehouse").write_text("no folder")
    with api.listen(shop.spark, warehouse=shop.home / "warehouse", topology="shop"):
        shop.run(ignore)
    assert "not recorded" in caplog.text


# application


NAMES = ("orders", "ids")
STATISTICS = ("n", "min_ms", "max_ms", "sum_ms", "negative_n")
MINE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from tidemark.control.folder import Control

spark = SparkSession.builder.getOrCreate()
feed, control, after = map(Path, sys.argv[1:])

def write(rows, batch_id):
    rows.count()
    if batch_id == 1:
        Control(control).request_drain(by="ann", now_ms=1)

orders = spark.readStream.schema("order_id string, ordered_at timestamp").option("maxFilesPerTrigger", 1)
marked = orders.json(str(feed)).withWatermark("ordered_at", "1 second").dropDuplicatesWithinWatermark(["order_id"])
writer = marked.writeStream.queryName("orders").foreachBatch(write)
writer.option("checkpointLocation", str(after.parent / "checkpoint")).start().awaitTermination()
after.write_text("the job went on")
marked.writeStream.queryName("again").format("noop").start()
"""


def test_a_drain_stops_the_queries_of_an_unchanged_job(shop, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    shop.orders(("a", "new", 1_000), ("a", "new", 3_000))
    shop.orders(("c", "new", 9_000))
    warehouse, file = shop.home / "warehouse", shop.home / "mine.py"
    control = Control(Layout(warehouse).control("shop", "mine"))
    file.write_text(MINE)
    names = {"topology": "shop", "sub_topology": "mine", "launch_id": "l", "launched_by": "", "warehouse": warehouse}
    arguments = [str(each) for each in (shop.home / "feed", control.home, shop.home / "after")]
    options = {"application": file, "argument": arguments, "take_over": False, "silent_after": 60.0}

    assert run_application(ApplicationOptions(**names, **options)) == 0

    assert (shop.home / "after").read_text() == "the job went on"
    beat = control.heartbeat()
    assert (beat.state, beat.drained_by, beat.reason) == ("drained", "ann", None)
    # No query of the name `again` was started.
    assert sorted(path.name for path in (warehouse / "streams" / "shop").iterdir()) == ["mine", "orders"]
    assert shop.rows("batches", "batch_id", "records_in")[:2] == [(0, 2), (1, 1)]
    ((_, states, phases), *_) = shop.rows("batches", "batch_id", "states", "phases")
    assert [(state["rows"], state["updated"]) for state in states] == [(1, 1)]
    in_order = [each["detail"] for each in phases]
    assert in_order.index("latestOffset") < in_order.index("addBatch") < in_order.index("commitOffsets")
    # Its batches are pieces of one life, by the lease of the query; the wall clock may be slewed by a ms.
    lives = shop.rows("batches", "batch_id", "epoch", "phases", "phases_boot_ms")
    for (_, epoch, _, before_ms), (_, _, told, ended_ms) in pairwise(lives):
        assert (epoch, abs(ended_ms - before_ms - sum(each["ms"] for each in told)) <= 5) == (1, True)
    assert {row[0] for row in shop.rows("heartbeats", "epoch")} == {1}
    # The latencies differ by the distance of the record times, whatever the clock was.
    measured = ("batch_id", "operator", "n", "min_ms", "max_ms", "sum_ms", "negative_n")
    rows = shop.rows("operator_batches", *measured)
    (first, _) = [row for _, operator, *row in rows if operator == "orders" and row[0] is not None]
    assert (first[0], first[2] - first[1], first[3] - 2 * first[1], first[4]) == (2, 2_000, 2_000, 0)
    assert not any(query.isActive for query in shop.spark.streams.active)
    # The query is a stream of its own, for every command.
    topology = recorded_topology(Layout(warehouse), "shop")
    assert topology is not None
    assert dict(topology.upstreams) == {"orders:feed": (), "orders": ("orders:feed",)}
    assert [(name, job.application) for name, job in topology.jobs.items()] == [("orders", str(file))]
    of_query = Control(Layout(warehouse).control("shop", "orders")).heartbeat()
    assert (of_query.state, of_query.reason) == ("drained", None)
    assert shop.rows("operator_batches", "batch_id", "operator", "passed")[:2] == [
        (0, "orders", 2),
        (0, "orders:feed", 2),
    ]


OBSERVED = """
import sys
from pyspark.sql import SparkSession

feed, out, checkpoint = sys.argv[1:]
orders = SparkSession.builder.getOrCreate().readStream.schema("order_id string, ordered_at timestamp").json(feed)

def run(rows, name):
    writer = rows.writeStream.queryName(name).option("checkpointLocation", f"{checkpoint}/{name}")
    writer.trigger(availableNow=True).format("json").start(f"{out}/{name}").awaitTermination()

run(orders.where("order_id <> 'x'"), "orders")
run(orders.select("order_id"), "ids")
"""


def test_an_observed_job_writes_the_same_and_counts_its_slow_records(shop, monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (shop.home / "topologies").mkdir()
    (shop.home / "expectations").mkdir()
    promise = 'subject = "orders"\nmeasure = "burn_rate"\nthreshold = "1 h"\ntarget = 0.9\nerror_at = 2\nowner = "ann"'
    (shop.home / "expectations" / "slas.toml").write_text(f"[shop.quick]\n{promise}\n")
    monkeypatch.setenv("TIDEMARK_PROJECT", str(shop.home))
    # Two are years old, and one lies years ahead, whatever the clock is; the last one is filtered out.
    old, ahead, seconds = (instant_ms(day) - NOON for day in ("2020-01-01", "2200-01-01", "1970-01-21"))
    shop.orders(("a", "new", old), ("b", "new", old + 2_000), ("c", "new", ahead), ("d", "new", None), ("x", "new", 0))
    shop.orders(("s", "new", seconds))  # seconds that were taken for milliseconds
    file = shop.home / "mine.py"
    file.write_text(OBSERVED)

    def run(warehouse: str, observe: list[str]) -> dict[str, str]:
        out, checkpoint = (str(shop.home / f"{name}_of_{warehouse}") for name in ("out", "checkpoint"))
        names = {"topology": "shop", "sub_topology": "mine", "launch_id": "l", "launched_by": "", "observe": observe}
        options = {"application": file, "argument": [str(shop.home / "feed"), out, checkpoint], "take_over": False}
        place = {"warehouse": shop.home / warehouse, "silent_after": 60.0}
        assert run_application(ApplicationOptions(**names, **options, **place)) == 0
        written = {each: "".join(sorted(part.read_text() for part in Path(out, each).glob("*.json"))) for each in NAMES}
        assert [*map(len, map(str.splitlines, written.values()))] == [5, 6]
        return written

    assert run("warehouse", ["at", "ordered_at"]) == run("as_it_is", [])

    (row,) = [
        row for row in shop.rows("operator_batches", "operator", "over_limits", *STATISTICS) if row[0] == "orders"
    ]
    _, over_limits, n, least_ms, most_ms, sum_ms, negative_n = row
    assert (over_limits, n, negative_n) == ([{"limit_ms": 3_600_000, "n": 2}], 3, None)
    assert (most_ms - least_ms, sum_ms - 3 * least_ms) == (ahead - old, 2 * (ahead - old) - 2_000)
    assert not any(row[1] for row in shop.rows("operator_batches", "operator", "over_limits", sub_topology="ids"))
    assert (
        "query ids is not observed: it writes no column at or ordered_at of type TIMESTAMP, but order_id" in caplog.text
    )


@pytest.mark.parametrize(
    "named", ["queryName('orders')", "option('queryname', 'orders')", "options(queryName='orders')"]
)
def test_a_name_that_another_job_holds_starts_no_query(shop, monkeypatch, named):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    shop.orders(("a", "new", 1_000))
    warehouse, file, checkpoint = (shop.home / name for name in ("warehouse", "mine.py", "checkpoint"))
    other = Control(Layout(warehouse).control("shop", "orders"))
    other.acquire()
    rows = "SparkSession.builder.getOrCreate().readStream.format('rate').load()"
    writer = f"{rows}.writeStream.option('checkpointLocation', {str(checkpoint)!r}).format('noop').{named}"
    file.write_text(f"from pyspark.sql import SparkSession\n{writer}.start()")
    names = {"topology": "shop", "sub_topology": "mine", "launch_id": "l", "launched_by": "", "warehouse": warehouse}
    options = {"application": file, "argument": [], "take_over": False, "silent_after": 60.0}
    assert run_application(ApplicationOptions(**names, **options)) == 1
    other.release()
    assert (
        "another job runs a query of this name" in Control(Layout(warehouse).control("shop", "mine")).heartbeat().reason
    )
    assert not checkpoint.exists()


# hops


def test_hops_come_back_in_order_beside_other_headers(spark):
    rows = spark.createDataFrame(
        [("a", [("trace", b"7"), ("tidemark-hop", b"\xff"), ("tidemark-hop", b"x:")])], HEADERS
    )
    noted = api.with_hop(api.with_hop(rows, "enrichment", clock=lambda: 1_000), "billing", clock=lambda: 2_500)

    assert [header["key"] for header in noted.first()["headers"]] == ["trace", *["tidemark-hop"] * 4]
    assert noted.first()["headers"][3]["value"] == b"enrichment:1000"
    assert hops_of(noted) == [("enrichment", 1_000), ("billing", 2_500)]


def test_rows_without_headers_get_them(spark):
    assert hops_of(api.with_hop(spark.range(1), "first", clock=lambda: 5)) == [("first", 5)]
    none = spark.createDataFrame([("a", None)], HEADERS)
    assert hops_of(none) == []
    assert hops_of(api.with_hop(none, "first", clock=lambda: 5)) == [("first", 5)]


def test_of_more_than_32_hops_the_oldest_are_forgotten(spark):
    noted = [("tidemark-hop", f"h:{n}".encode()) for n in range(31)]
    rows = spark.createDataFrame([("a", noted)], HEADERS)
    for at_ms in (100, 101):
        rows = api.with_hop(rows, "late", clock=lambda at_ms=at_ms: at_ms)
    assert hops_of(rows) == [*(("h", n) for n in range(1, 31)), ("late", 100), ("late", 101)]


def test_a_hop_of_a_stream_is_read_and_its_id_not_sent_on(spark):
    sent = [("tidemark-id", b"shop/orders/1/7/0"), ("tidemark-hop", b"shop/alerts:50")]
    noted = api.with_hop(spark.createDataFrame([("a", sent)], HEADERS), "mine", clock=lambda: 60)
    assert hops_of(noted) == [("shop/alerts", 50), ("mine", 60)]
    assert [header["key"] for header in noted.first()["headers"]] == ["tidemark-hop", "tidemark-hop"]


def test_a_stream_gets_no_hop(shop):
    with pytest.raises(InvalidArgument, match=r"call with_hop\('orders'\) inside foreachBatch"):
        api.with_hop(shop.stream(), "orders")


# docs/api.md


def test_the_documented_example_runs(shop):
    text = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    shop.orders(("a", "new", 1), ("a", "new", 2), ("b", "new", 1))
    shop.orders(("a", "paid", 3))
    warehouse, lake = shop.home / "warehouse", shop.home / "lake"

    exec(example, {"spark": shop.spark, "orders": shop.stream(), "warehouse": warehouse, "lake": lake})

    written = shop.spark.read.format("delta").load(f"{lake}/order_status")
    assert sorted((row["order_id"], row["status"]) for row in written.collect()) == [
        ("a", "new"),
        ("a", "paid"),
        ("b", "new"),
    ]
    outcomes = ("batch_id", "operator", "records_in", "emitted", "suppressed", "passed")
    of_operators = [
        row for row in shop.rows("operator_batches", *outcomes) if row[1] in {"order_board", "order_status"}
    ]
    assert of_operators == [  # `listen` adds those of the query and its source
        (0, "order_board", 3, 0, 0, 3),
        (0, "order_status", 3, 2, 1, 0),
        (1, "order_board", 1, 0, 0, 1),
        (1, "order_status", 1, 1, 0, 0),
    ]
    measured = [row for row in shop.rows("operator_batches", "operator", "n") if row[1] is not None]
    assert measured == [("order_board", 1), ("order_board", 3)]
    assert shop.rows("batches", "batch_id", "records_in") == [(0, 3), (1, 1)]


HEADERS = "id string, headers array<struct<key:string,value:binary>>"


def hops_of(rows: DataFrame) -> list[tuple[str, int]]:
    return [tuple(hop) for hop in api.hops(rows).first()["hops"]]


def ignore(rows: DataFrame, batch_id: int) -> None:
    """A team's function that needs no rows."""


def order(shop: Shop, status: str, at: int) -> DataFrame:
    """Returns a row of order a; its offset equals its record time.

    The record time is in ms after noon.
    """
    rows = shop.spark.createDataFrame([("a", status, NOON + at, 0, at)], SCHEMA.replace("timestamp", "bigint"))
    return rows.withColumn("ordered_at", F.timestamp_millis("ordered_at"))


def write(rows: DataFrame, batch_id: int, state: api.State, reached: list[list[int]]) -> None:
    with api.changed(rows, batch_id, **COMPARED, state=state) as news:
        reached.append(offsets(news))


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.WARNING, logger="tidemark.api"):
        yield
