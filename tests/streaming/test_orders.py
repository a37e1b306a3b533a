"""A shop's orders: `topologies/orders.toml`, judged against a plain-Python calculation.

Half a minute of orders in ten seconds, through a real broker and three drivers as a user starts them, undisturbed.
"""

from __future__ import annotations

import json
import shutil
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from streaming.drivers import Driver, Row, SharedDriver, batches_of, in_kafka, reads_of, rows_of
from streaming.laws import (
    by_batch,
    check_accounting,
    check_final,
    check_never_back,
    check_read_once,
    check_suppressed,
    counted,
    late_of,
    outcomes_of,
    skips_of,
    times_of,
    updates_of,
)
from streaming.orders_feed import ALL_CLOSED, CUSTOMERS, SETTLED, SIZE, STOCK, closing, edge, feed
from streaming.orders_oracle import ALLOWED_LATENESS_MS, BOUND_MS, ORDERS, PRICES, pricing_of, products_of, regions_of
from streaming.sending import WriterPosition, send

from support.oracle import Oracle
from support.oracle_parts import EmitOnChange, Fields, Handed, Message, Place, text
from tidemark.local.broker import create_topics

TOPOLOGY = "orders"
TOPICS = {"orders": 2, "prices": 1, "dear_orders": 1, "demand": 1}
HOPS = {"regions": "by_region", "products": "by_product"}
SPEED = 4


@dataclass(frozen=True)
class Flow:
    """Results of a play: Kafka, Delta, and the calculation."""

    start_ms: int
    exits: list[int]
    messages: list[Message]
    sinks: Mapping[str, list[Message]]
    warehouse: Path
    pricing: Oracle
    regions: Oracle
    products: Oracle

    def rows(self, sub_topology: str, table: str) -> list[Row]:
        return rows_of(self.warehouse, TOPOLOGY, sub_topology, table)

    @property
    def oracles(self) -> dict[str, Oracle]:
        return {"pricing": self.pricing, "regions": self.regions, "products": self.products}


class Shop:
    """The drivers, and the Delta tables beside them."""

    def __init__(self, home: Path, address: str, shared: SharedDriver, stack: ExitStack) -> None:
        self.warehouse, self._address, self.stock = home / "warehouse", address, list[Fields]()
        customers = pl.DataFrame({"customer": list(CUSTOMERS), "region": list(CUSTOMERS.values())})
        write_deltalake(self._reference("customers"), customers.to_arrow())
        DeltaTable.create(self._reference("stock"), _stock_rows([]).to_arrow().schema)
        self.drivers = {}
        for name in ("pricing", *HOPS):
            self.drivers[name] = Driver(name, home, address, topology=TOPOLOGY, shared=shared)
            stack.callback(self.drivers[name].end)

    def _reference(self, table: str) -> str:
        return str(self.warehouse / "reference" / table)

    def send(self, feed: Sequence[WriterPosition]) -> None:
        """Sends *feed* and waits until every driver has processed it."""
        send(feed, self._address, speed=SPEED, elsewhere={STOCK: self._append})
        pricing = self.drivers["pricing"]
        pricing.read_everything(self._address, {ORDERS: "orders", PRICES: "prices"})
        pricing.wait(lambda: pricing.offsets().get("stock_counts/0") == len(self.stock), "stock")
        for name, hop in HOPS.items():
            last = rows_of(self.warehouse, TOPOLOGY, "pricing", f"hop_{hop}")[-1]["batch_id"]
            self._wait_for_hop(self.drivers[name], f"{hop}_source/0", last + 1)

    def _wait_for_hop(self, driver: Driver, source: str, until: int) -> None:
        driver.wait(lambda: driver.offsets().get(source) == until, f"{source} until {until}")

    def _append(self, sent: WriterPosition) -> None:
        row = json.loads(sent.value or b"")
        write_deltalake(self._reference("stock"), _stock_rows([row]).to_arrow(), mode="append")
        self.stock.append(row)

    def wait_for_totals(self) -> None:
        """Waits for the interval after which no total is held."""

        def are_sent() -> bool:
            rows = [r for r in rows_of(self.warehouse, TOPOLOGY, "products", "operator_batches") if r["held_after"]]
            last = rows_of(self.warehouse, TOPOLOGY, "products", "batches")[-1]["batch_id"]
            return last not in {row["batch_id"] for row in rows}

        self.drivers["products"].wait(are_sent, "totals")


def _stock_rows(rows: list[Fields]) -> pl.DataFrame:
    schema = {"product": pl.String, "in_stock": pl.Int32, "event_time": pl.Int64}
    return pl.DataFrame(rows, schema=schema)


def play(shop: Shop) -> int:
    """Sends the feed, its edge cases, and its end; returns its start.

    The edge is that of being late; the end closes every window.
    """
    start_ms = (time.time_ns() // 1_000_000 - ALL_CLOSED) // SIZE * SIZE  # no time goes by records ahead of the clock
    shop.drivers["pricing"].wait(lambda: bool(shop.drivers["pricing"].offsets()), "a first batch")
    for part in (feed(start_ms), edge(start_ms + SETTLED - BOUND_MS - 1), closing(start_ms)):
        shop.send(part)
    shop.wait_for_totals()
    return start_ms


@pytest.fixture(scope="module")
def flow(broker: str, shared: SharedDriver, tmp_path_factory: pytest.TempPathFactory) -> Flow:
    home = tmp_path_factory.mktemp(TOPOLOGY)
    shutil.copy(Path(__file__).parent / "topologies" / f"{TOPOLOGY}.toml", home)
    create_topics(broker, TOPICS)
    with ExitStack() as stack:
        shop = Shop(home, broker, shared, stack)
        start_ms = play(shop)
        exits = [driver.drain() for driver in shop.drivers.values()]
    messages = [*in_kafka(broker, "orders", source=ORDERS), *in_kafka(broker, "prices", source=PRICES)]
    sinks = {topic: in_kafka(broker, topic) for topic in ("dear_orders", "demand")}
    batches = {
        name: batches_of(
            *(rows_of(shop.warehouse, TOPOLOGY, name, table) for table in ("batches", "partition_batches"))
        )
        for name in shop.drivers
    }
    regions = {customer: region for customer, region in CUSTOMERS.items() if region is not None}
    pricing = pricing_of(messages, shop.stock, regions, batches["pricing"])
    behind = regions_of(pricing, batches["regions"]), products_of(pricing, batches["products"])
    return Flow(start_ms, exits, messages, sinks, shop.warehouse, pricing, *behind)


def test_the_drivers_end_with_0_when_they_are_drained(flow: Flow) -> None:
    assert flow.exits == [0, 0, 0]


def test_every_record_is_read_by_one_batch(flow: Flow) -> None:
    for name in flow.oracles:
        check_read_once(flow.rows(name, "partition_batches"))
    reads = reads_of(flow.rows("pricing", "partition_batches")).values()
    read = [place for part in chain.from_iterable(reads) if part.topic != "stock_counts" for place in part.places()]
    assert sorted(read) == sorted(message.place for message in flow.messages)


@pytest.mark.parametrize("name", ["pricing", "regions", "products"])
def test_every_operator_counts_its_outcomes_in_every_batch(flow: Flow, name: str) -> None:
    check_accounting(flow.rows(name, "operator_batches"))
    assert outcomes_of(flow.rows(name, "operator_batches")) == counted(flow.oracles[name].outcomes)
    check_suppressed(flow.rows(name, "operator_batches"), flow.rows(name, "suppressed"))


def test_an_unusable_record_is_quarantined_with_its_reason(flow: Flow) -> None:
    rows = flow.rows("pricing", "quarantine")
    seen = [(Place(row["source"], row["partition"], row["offset"]), row["reason"]) for row in rows]
    assert sorted(seen) == sorted(flow.pricing.quarantined)
    assert len(seen) == 8


def test_no_partition_was_so_far_ahead_that_it_had_to_wait(flow: Flow) -> None:
    assert [row for row in flow.rows("pricing", "state_changes") if row["kind"] == "held_record"] == []
    assert {row["held_after"] for row in flow.rows("pricing", "operator_batches")} == {0}


def test_prices_and_stock_change_when_a_value_does(flow: Flow) -> None:
    for operator in ("price_now", "stock_now"):
        changes = flow.pricing[operator].changes
        assert updates_of(flow.rows("pricing", "changes"), operator) == changes.sent
        assert skips_of(flow.rows("pricing", "suppressed"), operator) == changes.skipped
    assert flow.pricing["price_now"].changes.skipped.total() > 0


def test_every_priced_order_is_handed_on_by_region(flow: Flow) -> None:
    check_handed(flow.rows("pricing", "hop_by_region"), flow.pricing["by_region"].handed, partitions=2)
    assert {row.key for rows in flow.pricing["by_region"].handed.values() for row in rows} == {
        *("north", "south", "west", "unknown")
    }


def test_a_corrected_order_retracts_what_it_was_before(flow: Flow) -> None:
    check_handed(flow.rows("pricing", "hop_by_product"), flow.pricing["by_product"].handed, partitions=1)
    handed = [row for rows in flow.pricing["by_product"].handed.values() for row in rows]
    assert {(row.old is None, row.new is None) for row in handed} == {(True, False), (False, True), (False, False)}
    assert skips_of(flow.rows("pricing", "suppressed"), "by_product") == flow.pricing["by_product"].changes.skipped


def check_handed(rows: Sequence[Row], handed: Mapping[int, Sequence[Handed]], *, partitions: int) -> None:
    """Checks that a hop's rows, without marks, equal the oracle's."""
    names = ("batch_id", "key", "old_value", "value", "timestamp", "source_partition", "source_offset")
    records = [row for row in rows if row["watermark"] is None and row["idle"] is None]
    assert [tuple(row[name] for name in names) for row in records] == [
        (batch_id, row.key, _text(row.old), _text(row.new), row.timestamp_ms, row.partition, row.offset)
        for batch_id, rows in handed.items()
        for row in rows
    ]
    assert all(row["partition"] == zlib.crc32(row["key"].encode()) % partitions for row in records)


def _text(value: Fields | None) -> str | None:
    return None if value is None else text(value)


def test_a_dear_order_is_sent_on_when_its_hundreds_are_others(flow: Flow) -> None:
    changes, dear = flow.rows("pricing", "changes"), flow.pricing["dear_orders"].changes
    assert without_values(changes, "dear_orders") == [update._replace(value=None) for update in dear.sent]
    assert skips_of(flow.rows("pricing", "suppressed"), "dear_orders") == dear.skipped
    amounts = [json.loads(row["value"])["amount"] for row in changes if row["operator"] == "dear_orders"]
    assert amounts == [row.fields["amount"] for row in flow.pricing["dear"].rows]
    sent = [((message.key or b"").decode(), json.loads(message.value or b"")) for message in flow.sinks["dear_orders"]]
    assert sent == [(row.fields["product"], row.fields) for row in flow.pricing["dear"].rows]
    assert dear.skipped.total() > 0


def without_values(changes: Sequence[Row], operator: str) -> list[object]:
    return [update._replace(value=None) for update in updates_of(changes, operator)]


def test_orders_are_late_where_no_window_takes_them_any_more(flow: Flow) -> None:
    assert late_of(flow.rows("pricing", "late_records"), "orders") == sorted(flow.pricing["orders"].late)
    for operator in ("revenue", "best_sellers"):
        assert late_of(flow.rows("regions", "late_records"), operator) == sorted(flow.regions[operator].late)


def test_on_the_edge_a_record_is_late_by_the_millisecond(flow: Flow) -> None:
    watermark_ms = flow.start_ms + SETTLED - BOUND_MS - 1
    rows = [*flow.rows("pricing", "late_records"), *flow.rows("regions", "late_records")]
    edge = {(row["operator"], row["lateness_ms"]) for row in rows if row["watermark"] == watermark_ms}
    assert edge == {
        ("orders", 6_000),
        *(("revenue", ms) for ms in (5_999, 4_000)),
        *(("best_sellers", ms) for ms in (5_999, 4_000, 3_999, 0)),
    }


def test_the_final_revenue_of_a_window_is_sent_once_when_closed(flow: Flow) -> None:
    changes = [row for row in flow.rows("regions", "changes") if row["operator"] == "revenue"]
    assert by_batch(changes, "revenue") == {n: found for n, found in flow.regions["revenue"].sent.items() if found}
    check_final(flow.rows("regions", "batches"), changes, closed_after_ms=ALLOWED_LATENESS_MS)
    assert not flow.regions["revenue"].groups


def test_the_revenue_board_has_a_row_per_region_and_window(flow: Flow) -> None:
    expected = [
        (batch_id, update.key, update.value, update.timestamp_ms, update.partition, update.offset)
        for batch_id, updates in flow.regions["revenue"].sent.items()
        for update in updates
    ]
    assert sorted(board_of(flow, "revenue_board", ("n", "revenue", "products"))) == sorted(expected)


def test_best_sellers_are_sent_on_with_every_update(flow: Flow) -> None:
    sent = flow.regions["best_sellers"].updates
    assert updates_of(flow.rows("regions", "changes"), "best_sellers") == sent
    board = [row[1:] for row in board_of(flow, "best_sellers_board", ("sold", "largest"))]
    assert board == [(u.key, u.value, u.timestamp_ms, u.partition, u.offset) for u in sent]


def board_of(flow: Flow, table: str, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """Returns a sink's rows with batch, key, value, time and record.

    Key and value are text.
    """
    return [
        (
            row["batch_id"],
            text({name: row[name] for name in ("region", "window_start")}),
            text({name: row[name] for name in columns}),
            *(row[name] for name in ("timestamp", "source_partition", "source_offset")),
        )
        for row in flow.rows("regions", table)
    ]


def test_totals_are_sent_on_once_an_interval(flow: Flow) -> None:
    found = by_batch(flow.rows("products", "changes"), "product_totals")
    assert found == {n: updates for n, updates in flow.products["product_totals"].sent.items() if updates}
    rows = flow.rows("products", "product_board")
    said, board = ("product", "orders", "sold", "mean_amount", "timestamp"), flow.products["product_board"].current
    assert {row["product"]: [row[name] for name in said] for row in rows} == {
        product: [row[name] for name in said] for product, row in board.items()
    }
    assert len(rows) == len(board)


def test_at_the_end_the_board_has_every_order_once(flow: Flow) -> None:
    orders = [json.loads(value) for value, _ in flow.pricing["by_product"].changes.stored.values() if value is not None]
    sold = {row["product"]: (row["orders"], row["sold"]) for row in flow.rows("products", "product_board")}
    assert sold == {
        product: (len(of), sum(order["quantity"] for order in of))
        for product in {order["product"] for order in orders}
        if (of := [order for order in orders if order["product"] == product])
    }


def test_demand_is_sent_on_when_its_class_is_another(flow: Flow) -> None:
    demand: EmitOnChange = flow.products["demand"].changes
    assert updates_of(flow.rows("products", "changes"), "demand") == demand.sent
    assert skips_of(flow.rows("products", "suppressed"), "demand") == demand.skipped
    sent = [((message.key or b"").decode(), json.loads(message.value or b"")) for message in flow.sinks["demand"]]
    assert sent == [(update.key, {"product": update.key, **json.loads(update.value or "")}) for update in demand.sent]


def test_orders_lead_and_what_is_behind_the_hops_comes_as_far(flow: Flow) -> None:
    for name in flow.oracles:
        check_never_back(flow.rows(name, "partition_batches"))
    batches = flow.rows("pricing", "batches")
    for source in (ORDERS, PRICES):
        assert times_of(flow.rows("pricing", "partition_batches"), batches, source) == flow.pricing.times_of(source)
    for name, oracle in flow.oracles.items():
        assert {b["batch_id"]: b["watermark"] for b in flow.rows(name, "batches")} == oracle.watermarks
    assert flow.rows("regions", "batches")[-1]["watermark"] == flow.start_ms + ALL_CLOSED - BOUND_MS - 1
