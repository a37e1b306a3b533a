"""Charts show the numbers that they are given, and have them as a table."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.facts.topology_changes import RecordedChange
from tidemark.model.settings.intervals import Interval
from tidemark.reports.pages.charts import (
    MOST,
    OUTCOMES,
    PARTS,
    emission,
    latency_bands,
    share_lines,
    watermark_lag,
    windows_spent,
)
from tidemark.reports.pages.plots import lengths_axis, ticks
from tidemark.reports.pages.templates import template

TEN_MINUTES = Interval(0, 600_000)


def window(end_ms, *lengths_ms, over_sla=False):
    """Returns a window with these lengths of PARTS."""
    return {
        "end_ms": end_ms,
        **dict(zip(PARTS, lengths_ms, strict=True)),
        "age_ms": sum(lengths_ms),
        "longest_ms": sum(lengths_ms) + 500,
        "over_sla": over_sla,
    }


def bars(drawn, name):
    """Returns the left edge, width, top and bottom of each bar of that name, in the units of the plot."""
    found = []
    for path in re.findall(f'<path class="{name}" d="(.*?)"', drawn):
        for left, top, width, bottom in re.findall(r"M([\d.]+),([\d.]+)h([\d.]+)V([\d.]+)h-[\d.]+z", path):
            found.append((float(left), float(width), float(top), float(bottom)))
    return found


def table_of(drawn):
    """Returns the rows of the first table in *drawn*."""
    (body, *_) = re.findall("<tbody>(.*?)</tbody>", drawn)
    return [re.findall("<t[hd].*?>(.*?)</t[hd]>", row) for row in re.findall("<tr>(.*?)</tr>", body)]


def test_the_bars_of_three_windows_are_where_their_numbers_say():
    drawn = windows_spent(
        [
            window(60_000, 4_000, 3_000, 1_000, 2_000),
            window(300_000, 2_000, 1_000, 500, 1_500),
            window(540_000, -2_000, 0, 0, 8_000),  # the clock of its source was ahead
        ],
        TEN_MINUTES,
        60_000,
    )
    # A bar is 1.3 % wide around its window's end. From -2 s to 5 % above 10 s, 12.5 s: 0 is at 84 % from the top.
    assert bars(drawn, "before_source_ms") == [(93.5, 13, 52, 84), (493.5, 13, 68, 84), (893.5, 13, 84, 100)]
    assert bars(drawn, "waited_ms") == [(93.5, 13, 28, 52), (493.5, 13, 60, 68), (893.5, 13, 84, 84)]
    assert bars(drawn, "queued_ms") == [(93.5, 13, 20, 28), (493.5, 13, 56, 60), (893.5, 13, 84, 84)]
    assert bars(drawn, "worked_ms") == [(93.5, 13, 4, 20), (493.5, 13, 44, 56), (893.5, 13, 20, 84)]
    assert table_of(drawn)[2] == ["1970-01-01 00:09:00", "-2 s", "0 ms", "0 ms", "8 s", "6 s", ""]


@given(st.lists(st.lists(st.integers(-(10**7), 10**12), min_size=4, max_size=4), min_size=1, max_size=5))
def test_the_parts_of_a_bar_tile_it(windows):
    rows = [window(n * 100_000, *lengths_ms) for n, lengths_ms in enumerate(windows)]
    drawn = windows_spent(rows, TEN_MINUTES, 60_000)
    zero = bars(windows_spent([*rows, window(599_000, 0, 0, 0, 0)], TEN_MINUTES, 60_000), "worked_ms")[-1][3]
    by_part = {column: bars(drawn, column) for column in PARTS}
    for place, row in enumerate(rows):
        upwards = [by_part[column][place] for column in PARTS if row[column] >= 0]
        downwards = [by_part[column][place] for column in PARTS if row[column] < 0]
        for one, next_one in pairwise(upwards):
            assert next_one[3] == one[2]
        for one, next_one in pairwise(downwards):
            assert next_one[2] == one[3]
        assert [bar[3] for bar in upwards[:1]] in ([], [zero])
        assert [bar[2] for bar in downwards[:1]] in ([], [zero])
        assert len({bar[:2] for bar in [*upwards, *downwards]}) == 1


def test_a_triangle_is_over_the_bar_of_a_window_over_its_sla():
    rows = [window(60_000, 4_000, 0, 0, 0), window(300_000, 8_000, 0, 0, 2_000, over_sla=True)]
    drawn = windows_spent(rows, TEN_MINUTES, 60_000)
    # 10 s of 10.5 s: 4.76 % from the top.
    assert re.findall('<i class="mark" style="(.*?)">', drawn) == ["left:50%;top:4.76%"]
    assert "1 of the 2 places shown has a window that broke the limit of an SLA. " in drawn
    assert "the slowest window shown took 10 s, and the slowest of all windows 10.5 s." in drawn
    assert [row[-1] for row in table_of(drawn)] == ["", "over"]


@pytest.mark.parametrize(("over_sla", "has"), [(True, "has"), (False, "does not have")])
def test_the_only_place_of_a_chart_is_told_as_one(over_sla, has):
    drawn = windows_spent([window(60_000, 1, 1, 1, 1, over_sla=over_sla)], TEN_MINUTES, 60_000)
    assert f"The only place shown {has} a window that broke the limit of an SLA. " in drawn


def test_equal_medians_are_told_once():
    minute = {"operator": "board", "p90_ms": 200, "p99_ms": 400, "sla_ms": None}
    same = [minute | {"at_ms": n * 60_000, "p50_ms": ms} for n, ms in enumerate((11_140, 11_060))]
    drawn = latency_bands(same, Interval(0, 600_000), 60_000)
    assert "median 11.1 s, highest p99 400 ms" in drawn
    other = [minute | {"at_ms": 120_000, "p50_ms": 100}]
    assert "medians of 100 ms to 11.1 s" in latency_bands([*same, *other], Interval(0, 600_000), 60_000)


def test_outcomes_are_stacked_in_the_middle_of_their_time():
    row = {"operator": "by_carrier", "at_ms": 60_000, "emitted": 600, "suppressed": 200}
    drawn = emission([row, row | {"at_ms": 120_000, "emitted": 0}], TEN_MINUTES, 60_000)
    # A bar has nine tenths of its minute, which is a tenth of 1,000. The axis ends at 840.
    assert bars(drawn, "emitted") == [(105, 90, 28.57, 100), (205, 90, 100, 100)]
    assert bars(drawn, "suppressed") == [(105, 90, 4.76, 28.57), (205, 90, 76.19, 100)]
    assert 'aria-label="by_carrier: 600 emitted, 400 suppressed"' in drawn
    assert table_of(drawn) == [["1970-01-01 00:01:00", "600", "200"], ["1970-01-01 00:02:00", "0", "200"]]


def test_a_bar_is_cut_where_the_plot_ends():
    row = {"operator": "o", "at_ms": -30_000, "emitted": 5, "suppressed": 0}
    (first, last) = bars(emission([row, row | {"at_ms": 570_000}], TEN_MINUTES, 60_000), "emitted")
    assert first[:2] == (0, 45)  # until 27 s
    assert last[:2] == (955, 45)  # from 573 s


def test_the_operators_with_most_updates_are_drawn():
    rows = [{"operator": f"o{n}", "at_ms": 0, "emitted": n, "suppressed": 1} for n in range(MOST + 2)]
    drawn = emission(rows, TEN_MINUTES, 60_000)
    assert re.findall("<strong>(.*?)</strong>", drawn) == [f"o{n}" for n in range(2, MOST + 2)]
    assert "8 of 10 operators are drawn, those with most updates." in drawn
    assert "are drawn" not in emission(rows[2:], TEN_MINUTES, 60_000)


def test_lags_have_one_scale_and_strips_of_silence_below():
    lags = [
        {"source": "events", "partition": partition, "at_ms": at_ms, "lag_ms": lag_ms}
        for partition, at_ms, lag_ms in ((0, 150_000, 25_000), (0, 600_000, 0), (1, 0, 0), (1, 300_000, 100_000))
    ]
    silent = {"source": "events", "partition": 1}
    spans = [
        silent | {"activity": "idle", "at_ms": 60_000, "until_ms": 120_000},
        silent | {"activity": "backlogged", "at_ms": 300_000, "until_ms": 300_001},
    ]
    drawn = watermark_lag(lags, spans, TEN_MINUTES)
    # Lags go from 0 to 105 s, and the strips have 16.8 s below: 0 is at 105 / 121.8 from the top.
    assert re.findall('<polyline points="(.*?)"', drawn) == ["250,65.68 1000,86.21", "0,86.21 500,4.11"]
    # Idle: 6.3 s high. Backlogged: 16.8 s high, and wide enough to be seen.
    assert bars(drawn, "idle") == [(100, 100, 94.83, 100)]
    assert bars(drawn, "backlogged") == [(500, 1, 86.21, 100)]
    assert re.findall('aria-label="(.*?)"', drawn) == [
        "events 0: largest lag 25 s",
        "events 1: largest lag 1 min 40 s, longest idle time 1 min, longest backlogged time 1 ms",
    ]
    assert table_of(drawn.partition("events 1")[2]) == [
        ["1970-01-01 00:00:00", "0 ms", ""],
        ["1970-01-01 00:01:00", "", "idle until 1970-01-01 00:02:00"],
        ["1970-01-01 00:05:00", "", "backlogged until 1970-01-01 00:05:00"],
        ["1970-01-01 00:05:00", "1 min 40 s", ""],
    ]


def test_a_lag_below_0_and_a_single_lag_are_drawn():
    drawn = watermark_lag([{"source": "events", "partition": 0, "at_ms": 300_000, "lag_ms": -50_000}], [], TEN_MINUTES)
    # From -50 s to 1.05 ms, and 16 % more below: -50 s is at 1 / 1.16 from the top. A single one is 4 units wide.
    assert re.findall('<polyline points="(.*?)"', drawn) == ["498,86.21 502,86.21"]


@pytest.mark.parametrize("draw", [windows_spent, emission])
def test_nothing_to_draw_is_an_empty_chart(draw):
    assert draw([], TEN_MINUTES, 60_000) == ""
    assert watermark_lag([], [], TEN_MINUTES) == ""


def test_an_axis_of_very_large_values_has_few_ticks():
    year_ms = 365 * 86_400_000
    assert ticks(0, 100 * year_ms) == [0, 21 * year_ms, 42 * year_ms, 63 * year_ms, 84 * year_ms]


def test_the_style_of_pages_has_a_colour_for_each_thing_drawn():
    style = template("reports/pages/parts.html.j2").module.style()
    for name in (*PARTS, *OUTCOMES, "idle", "backlogged", "p90", "p99"):
        assert re.search(rf"\.{name}\b[^{{}}]*{{ color: ", style), name


def test_few_high_latencies_do_not_flatten_the_others():
    even, spread = lengths_axis([100, 200, 900], 200), lengths_axis([0, 100, 200, 60_000], 200)
    assert [words for _, words in even.ticks] == ["0", "200 ms", "400 ms", "600 ms", "800 ms"]
    assert [words for _, words in spread.ticks] == ["100 ms", "1 s", "10 s", "1 min"]
    # From 100 to 72,000 ms in equal ratios, 200 ms is ln 2 / ln 720 of the height above the edge.
    assert spread.y(200) == pytest.approx(100 * (1 - 0.6931 / 6.5793), abs=0.01)
    assert even.y(0) == 100


def test_bands_are_broken_where_nothing_was_measured():
    minute = {"operator": "board", "p50_ms": 100, "p90_ms": 200, "p99_ms": 400, "sla_ms": None}
    rows = [minute | {"at_ms": n * 60_000} for n in (0, 1, 5)]
    drawn = latency_bands(rows, Interval(0, 600_000), 60_000)
    # The middles of minutes 0 and 1 of ten are at 5 and 15 % of 1,000; minute 5 alone is as wide as a minute.
    assert re.findall('<polyline points="(.*?)"', drawn) == ["50,76.19 150,76.19", "500,76.19 600,76.19"]
    assert drawn.count('<polygon class="p99"') == 2


def test_an_upright_line_is_where_numbers_begin_to_mean_something_else():
    minute = {"operator": "board", "at_ms": 0, "p50_ms": 100, "p90_ms": 200, "p99_ms": 400, "sla_ms": None}
    change = RecordedChange(at_ms=150_000, sub_topology="main", operator="sums", batch_id=7, told="sums begins <anew>")
    rows = [minute, minute | {"operator": "other"}]
    told = "since 1970-01-01T00:02:30.000Z, batch 7 of main: sums begins &lt;anew&gt;"
    drawn = latency_bands(rows, TEN_MINUTES, 60_000, {"board": [change], "other": []})
    # Two and a half minutes of ten are a quarter of 1,000.
    line = f'<line class="changed" x1="250" x2="250" y1="0" y2="100"><title>{told}</title></line>'
    assert (drawn.count('<line class="changed"'), drawn.count(line)) == (1, 1)
    assert f"<strong>board</strong>: median 100 ms, highest p99 400 ms; {told}</figcaption>" in drawn
    assert "the numbers begin to mean something else" in drawn
    assert "something else" not in latency_bands(rows[1:], TEN_MINUTES, 60_000, {"board": [change]})
    updates = {"operator": "board", "at_ms": 0, "emitted": 6, "suppressed": 2}
    assert line in emission([updates], TEN_MINUTES, 60_000, {"board": [change]})


def test_a_line_stays_in_its_interval():
    minute = {"operator": "board", "p50_ms": 100, "p90_ms": 200, "p99_ms": 400, "sla_ms": None}
    rows = [minute | {"at_ms": n * 60_000} for n in (0, 1, 2)]
    # Of the interval from 50 s until 150 s the first minute has 10 s, and the last one 30 s.
    drawn = latency_bands(rows, Interval(50_000, 150_000), 60_000)
    assert re.findall('<polyline points="(.*?)"', drawn) == ["50,76.19 400,76.19 850,76.19"]
    alone = latency_bands(rows[:1], Interval(50_000, 150_000), 60_000)
    assert re.findall('<polyline points="(.*?)"', alone) == ["0,76.19 100,76.19"]


def test_a_budget_that_is_unknown_interrupts_its_line():
    rows = [{"name": "o", "at_ms": n * 60_000, "value": left} for n, left in enumerate((1, 0.5, None, 0.25, -0.25))]
    drawn = share_lines(rows, Interval(0, 600_000), 60_000)
    # From 100 % down to -50 %: 0.5 is a third of the height, 0.25 the half, -0.25 five sixths.
    assert re.findall('<polyline points="(.*?)"', drawn) == ["50,0 150,33.33", "350,50 450,83.33"]
    assert "o</strong>: 0 % of the error budget is left" in drawn
