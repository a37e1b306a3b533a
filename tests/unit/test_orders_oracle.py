"""The oracle of `orders`, on records worked out by hand."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from streaming import orders_feed
from streaming.orders_feed import SETTLED, SIZE, edge, feed
from streaming.orders_oracle import ORDERS, PRICES, pricing_of, products_of, regions_of

from support.oracle import Oracle
from support.oracle_parts import Batch, Fields, Handed, Late, Message, Place, Read, Update

T = 1_700_000_000_000
"""Record time from which these tests count.

It is a multiple of every window.
"""
DECIDED_AT = T + 60_000
"""When the first batch is decided: no record is ahead of it."""
CUSTOMERS = {"ann": "north"}
Record = tuple[str, dict[str, Any]]
"""The source and the fields."""


def order(number: int, at: int, **fields: Any) -> Record:
    named = {"order_id": str(number), "product": "figs", "customer": "ann", "quantity": 2, **fields}
    return ORDERS, {**named, "event_time": T + at}


def price(at: int, price: float, product: str = "figs") -> Record:
    return PRICES, {"product": product, "price": price, "event_time": T + at}


def alive(at: int) -> Record:
    return ORDERS, {"event_time": T + at}


def pricing(*batches: list[Record], stock: Sequence[Fields] = ()) -> Oracle:
    """Returns the first sub-topology after batches of a partition each.

    They are a second apart; the first reads *stock*.
    """
    messages: dict[str, list[Message]] = {ORDERS: [], PRICES: []}
    read = []
    for number, records in enumerate(batches):
        starts = {source: len(known) for source, known in messages.items()}
        for source, fields in records:
            place = Place(source, 0, len(messages[source]))
            messages[source].append(Message(place, b"a key", json.dumps(fields).encode(), T))
        reads = [Read(source, 0, start, len(messages[source])) for source, start in starts.items()]
        reads += [Read("stock_counts", 0, 0, len(stock))] if number == 0 else []
        read.append(Batch(DECIDED_AT + 1_000 * number, reads, number))
    return pricing_of([*messages[ORDERS], *messages[PRICES]], stock, CUSTOMERS, read)


def each_by_each(first: Oracle, hop: str) -> list[Batch]:
    """Returns downstream batches that read one of its batches each.

    They are a second apart.
    """
    return [Batch(DECIDED_AT + 1_000 * n, [Read(hop, 0, n, n + 1)], n) for n in first.outcomes]


def handed(rows: Mapping[int, Sequence[Handed]]) -> list[tuple[str, Fields | None, Fields | None]]:
    return [(row.key, row.old, row.new) for batch in rows.values() for row in batch]


def test_an_order_costs_the_price_of_its_time_or_is_left_out() -> None:
    oracle = pricing([order(1, 3_000), order(2, 2_999), order(3, 999), price(3_000, 2.0), price(1_000, 1.5)])
    assert [row.new for row in oracle["by_region"].handed[0]] == [
        {"region": "north", "product": "figs", "quantity": 2, "amount": 4.0},
        {"region": "north", "product": "figs", "quantity": 2, "amount": 3.0},
    ]
    assert oracle.outcomes[0]["priced"] == Counter(records_in=3, passed=2, filtered=1)


def test_of_prices_of_one_instant_the_last_holds() -> None:
    oracle = pricing([price(0, 1.0), price(0, 2.0), price(5, 2.0), price(0, 2.0), order(1, 5)])
    assert [(update.value, update.timestamp_ms) for update in oracle["price_now"].changes.sent] == [
        ('{"price":1.0}', T),
        ('{"price":2.0}', T),
        ('{"price":2.0}', T),
    ]
    assert oracle["price_now"].changes.skipped == {"figs": 1}
    assert oracle["by_region"].handed[0][0].new == {"region": "north", "product": "figs", "quantity": 2, "amount": 4.0}


def test_a_price_of_a_later_batch_changes_no_earlier_order() -> None:
    oracle = pricing([price(0, 1.0), order(1, 10)], [price(5, 9.0), order(2, 10)])
    assert [row.new["amount"] for rows in oracle["by_region"].handed.values() for row in rows if row.new] == [2.0, 18.0]


def test_an_unknown_customer_has_the_region_unknown() -> None:
    oracle = pricing([price(0, 1.0), order(1, 10, customer="zoe")])
    assert [row.key for row in oracle["by_region"].handed[0]] == ["unknown"]


def test_a_dear_order_is_news_when_its_hundreds_are_others() -> None:
    quantities = (99, 100, 199, 200, 150)
    oracle = pricing([price(0, 1.0), *(order(n, 10 + n, quantity=q) for n, q in enumerate(quantities))])
    assert [row.fields["amount"] for row in oracle["dear"].rows] == [100.0, 200.0, 150.0]
    assert oracle.outcomes[0]["dear_orders"] == Counter(records_in=5, filtered=1, suppressed=1, emitted=3)


def test_a_corrected_order_moves_to_another_product_in_two_rows() -> None:
    records = [price(0, 1.0), price(0, 3.0, "eggs"), order(1, 10), order(1, 20, quantity=5)]
    oracle = pricing([*records, order(1, 30, product="eggs"), order(1, 31, product="eggs")])
    two, five = ({"product": "figs", "quantity": n, "amount": float(n)} for n in (2, 5))
    eggs = {"product": "eggs", "quantity": 2, "amount": 6.0}
    assert handed(oracle["by_product"].handed) == [
        ("figs", None, two),
        ("figs", two, five),
        ("figs", five, None),
        ("eggs", None, eggs),
    ]
    assert oracle.outcomes[0]["by_product"] == Counter(records_in=4, emitted=3, fan_out=4, suppressed=1)


def test_an_order_is_late_at_the_source_when_no_window_takes_it() -> None:
    # The first batch brings the watermark to 10,000: windows of 4 s that are open for 2 s more end behind 8,001.
    oracle = pricing([price(0, 1.0), alive(11_001)], [order(1, 4_000), order(2, 4_001)])
    assert oracle["orders"].late == [Late(Place(ORDERS, 0, 1), T + 4_000, T + 10_000)]
    assert oracle.outcomes[1]["orders"] == Counter(records_in=2, late=1, passed=1)


def test_stock_is_a_table_too() -> None:
    stock = [{"product": "figs", "in_stock": n, "event_time": T + at} for n, at in ((3, 0), (3, 1), (2, 1))]
    oracle = pricing([], stock=stock)
    assert oracle.outcomes[0]["stock_now"] == Counter(records_in=3, emitted=2, suppressed=1)


def test_revenue_is_final_once_per_region_and_window() -> None:
    # 3,000 is in the windows from 0 and 2,000, which close at 5,999 and 7,999.
    first = pricing([price(0, 1.25), order(1, 3_000), order(2, 3_000, product="eggs")], [alive(6_999)], [alive(7_000)])
    oracle = regions_of(first, each_by_each(first, "by_region_source"))
    assert (oracle["revenue"].sent[0], oracle["revenue"].sent[1]) == ([], [])
    key = f'{{"region":"north","window_start":{T}}}'
    assert oracle["revenue"].sent[2] == [Update(key, '{"n":1,"revenue":2.5,"products":1}', T + 3_999, None, 0, 0)]
    assert oracle.outcomes[0]["revenue"] == Counter(records_in=2, held_after=2)
    assert oracle.outcomes[2]["revenue"] == Counter(held_before=2, emitted=1, held_after=1)


def test_best_sellers_say_every_update() -> None:
    first = pricing([price(0, 1.0), order(1, 2_000, quantity=3), order(2, 1_000, quantity=3)])
    oracle = regions_of(first, each_by_each(first, "by_region_source"))
    key = f'{{"region":"north","window_start":{T}}}'
    assert oracle["best_sellers"].updates == [
        Update(key, '{"sold":3,"largest":3.0}', T + 2_000, None, 0, 0),
        Update(key, '{"sold":6,"largest":3.0}', T + 2_000, T + 2_000, 0, 1),
    ]


def test_an_order_is_late_in_windows_when_all_of_its_are_closed() -> None:
    watermark = 11_999  # of best_sellers the window up to 12,000 has just closed, of revenue the one up to 10,000
    sent = [json.loads(one.value or b"") for one in edge(T + watermark)]
    orders = [(ORDERS, {**fields, "product": "figs"}) for fields in sent]
    first = pricing([price(0, 1.0), alive(watermark + 1_001)], orders)
    oracle = regions_of(first, each_by_each(first, "by_region_source"))
    assert [late.timestamp_ms - T - watermark for late in first["orders"].late] == [-6_000]
    all_late = {name: oracle[name].late for name in ("revenue", "best_sellers")}
    late = {name: [one.timestamp_ms - T - watermark for one in found] for name, found in all_late.items()}
    assert late == {"revenue": [-5_999, -4_000], "best_sellers": [-5_999, -4_000, -3_999, 0]}
    # Of revenue 3,999 ms of age fit into one open window, the two youngest into two each.
    assert oracle.outcomes[1]["revenue"] == Counter(records_in=7, late=2, superseded=2, held_after=3)


def test_behind_pricing_the_last_batch_read_gives_the_watermark() -> None:
    first = pricing([alive(5_000)], [alive(6_000)], [alive(7_000)])
    both = [
        Batch(DECIDED_AT, [Read("by_region_source", 0, 0, 2)], 0),
        Batch(DECIDED_AT, [Read("by_region_source", 0, 2, 3)], 1),
    ]
    oracle = regions_of(first, both)
    assert oracle.watermarks == {0: T + 4_999, 1: T + 5_999}


def test_totals_are_sent_in_the_first_batch_of_an_interval() -> None:
    eggs = {"product": "eggs"}
    first = pricing(
        [price(0, 1.5), price(0, 1.0, "eggs"), order(1, 10), order(2, 20, **eggs)], [order(2, 30, **eggs)], []
    )
    # T is 2,000 ms behind a multiple of 3,000: the first of the next one is the batch at T + 1,000.
    assert T % 3_000 == 2_000
    batches = [Batch(T + at, [Read("by_product_source", 0, n, n + 1)], n) for n, at in enumerate((0, 1_000, 4_000))]
    oracle = products_of(first, batches)
    figs, two_eggs = '{"orders":1,"sold":2,"mean_amount":3.0}', '{"orders":1,"sold":2,"mean_amount":2.0}'
    assert oracle["product_totals"].sent == {
        0: [],
        1: [Update("eggs", two_eggs, T + 20, None, 0, 1), Update("figs", figs, T + 10, None, 0, 0)],
        2: [],
    }
    assert oracle.outcomes[0]["product_totals"] == Counter(records_in=2, held_after=2)
    assert oracle.outcomes[1]["product_totals"] == Counter(held_before=2, emitted=2)
    assert oracle.outcomes[2]["product_totals"] == Counter(repeated=2)
    assert oracle.outcomes[2]["product_board"] == Counter(records_in=2, passed=2)


def test_totals_take_back_what_a_correction_replaces() -> None:
    first = pricing([price(0, 1.0), price(0, 1.0, "eggs"), order(1, 10), order(2, 20), order(2, 30, product="eggs")])
    oracle = products_of(first, each_by_each(first, "by_product_source"))
    totals = {
        product: (len(group.rows), sum(row.fields["quantity"] for row in group.rows), group.newest_ms - T)
        for product, group in oracle["product_totals"].groups.items()
    }
    assert totals == {"figs": (1, 2, 30), "eggs": (1, 2, 30)}


def test_demand_is_news_when_its_class_is_another() -> None:
    orders = [order(n, 10 * n, quantity=4) for n in range(1, 6)]
    first = pricing([price(0, 1.0), *orders, order(5, 60, quantity=3)])
    oracle = products_of(first, each_by_each(first, "by_product_source"))
    sent = [
        (json.loads(update.value or "")["demand"], update.timestamp_ms - T) for update in oracle["demand"].changes.sent
    ]
    assert sent == [("low", 10), ("some", 20), ("high", 50), ("some", 60)]


def test_the_feed_repeats_and_ends_on_a_windows_last_instant() -> None:
    sent = feed(T)
    assert sent == feed(T)
    assert sent == sorted(sent, key=lambda one: one.at_ms)
    last = {one.partition: one.timestamp_ms for one in sent if one.topic == orders_feed.ORDERS}
    assert last == {0: T + SETTLED, 1: T + SETTLED}
    assert (T + SETTLED - 1_001) % SIZE == SIZE - 1
