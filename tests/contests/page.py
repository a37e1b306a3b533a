"""Writes docs/benchmarks.md and its plot from the raw runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from contests.peers.peer import Peer, Promise
from contests.workload import CHANGED, KEYS, PARTITIONS
from markupsafe import Markup

from tidemark.reports.pages.colors import BLUE

Run = dict[str, Any]
OURS = "tidemark"
TARGETS = (("marginal", "kafka_streams", 1.0), ("marginal", "loop", 3.5), ("cpu_first", "kafka_streams", 2.0))
"""Figure of Tidemark, peer, and the greatest ratio that is aimed at."""
NAMES = {
    "cpu_first": "CPU of the smaller backlog, s",
    "cpu_last": "CPU of the larger backlog, s",
    "marginal": "marginal CPU per million records, s",
    "rss": "peak memory, GB",
    "written": "bytes written with the broker's, MB",
    "idle": "CPU of an idle minute, s",
}
PANEL_WIDTH, LONGEST_BAR, ROW_HEIGHT = 300, 220, 44
"""Sizes in the plot, px."""
MOST_THREADS = 8
UNEQUAL = 1.5
"""Ratio of loads above which figures are not compared."""
OWN_LOAD = 4.0
"""Most load that a peer, its broker and the contest make."""
DIFFERENCES = ("missing", "unexpected", "duplicates", "disordered")
TEXT = Path(__file__).with_suffix(".md")
"""The page, with fields of `str.format`."""


@dataclass(frozen=True)
class Figures:
    """Measurements of one peer; an empty list: it was not measured.

    CPU in s, `rss` in GB, `written` in MB of the smallest backlog, `idle` in CPU s per minute. `load`: the load average
    of the machine around each backlog.
    """

    peer: Peer
    cpu: dict[int, list[float]]
    rss: list[float]
    written: list[float]
    broker_cpu: list[float]
    idle: list[float]
    load: list[float]

    def value(self, figure: str, sizes: Sequence[int]) -> float | None:
        """Returns the median of a *figure* of NAMES; None: not measured."""
        if figure == "marginal":
            return _marginal(self.cpu, sizes)
        first, last = self.cpu.get(sizes[0]), self.cpu.get(sizes[-1])
        values = {"cpu_first": first, "cpu_last": last}.get(figure) or getattr(self, figure, None)
        return median(values) if values else None


def _marginal(cpu: Mapping[int, Sequence[float]], sizes: Sequence[int]) -> float | None:
    """Returns CPU s per further million records; None: not measured."""
    first, last = cpu.get(sizes[0]), cpu.get(sizes[-1])
    if not first or not last or len(sizes) == 1:
        return None
    return (median(last) - median(first)) / ((sizes[-1] - sizes[0]) / 1_000_000)


def write(folder: Path, runs: Sequence[Run], peers: Sequence[Peer]) -> str:
    """Writes the page and its plot into *folder*; returns its first table."""
    backlogs = [run for run in runs if run["kind"] == "backlog"]
    sizes = sorted({run["records"] for run in backlogs})
    if not sizes:
        return "no backlog was measured, so there is no page"
    figures = [each for peer in peers if (each := _figures(peer, runs, sizes[0])).cpu]
    costs = cost_table(figures, sizes)
    turns = len(next(iter(max(figures, key=lambda each: len(each.cpu)).cpu.values())))
    text = TEXT.read_text().format(
        partitions=PARTITIONS,
        keys=KEYS,
        changed=round(100 * CHANGED),
        first=_millions(sizes[0]),
        last=_millions(sizes[-1]),
        steps=(sizes[-1] - sizes[0]) / 1_000_000,
        turns="each of one run" if turns == 1 else f"medians of up to {turns} runs, with the range in brackets",
        costs=costs + unequal_load(figures),
        targets=targets(figures, sizes),
        losses=losses(figures, sizes),
        floor=floor_table(runs),
        profile=profile_table(runs, peers),
        emissions=emission_table(runs, peers),
        conditions=_conditions(runs),
        settings=_settings(runs, peers),
    )
    (folder / "benchmarks.md").write_text(text)
    (folder / "benchmarks.svg").write_text(_plot(figures, sizes))
    return costs


def _figures(peer: Peer, runs: Sequence[Run], size: int) -> Figures:
    """Returns the figures of *peer*, with memory of backlogs of *size*."""
    mine = [run for run in runs if run["peer"] == peer.name]
    backlogs = [run for run in mine if run["kind"] == "backlog"]
    cpu: dict[int, list[float]] = {}
    for run in backlogs:
        cpu.setdefault(run["records"], []).append(run["cpu_s"])
    smallest = [run for run in backlogs if run["records"] == size]
    return Figures(
        peer,
        cpu,
        rss=[run["peak_rss_mib"] / 1_024 for run in smallest],
        written=[run["written_mib"] + run["broker_written_mib"] for run in smallest],
        broker_cpu=[run["broker_cpu_s"] for run in smallest],
        load=[(run["began_load"] + run["load"]) / 2 for run in backlogs],
        idle=[run["idle_cpu_s_a_minute"] for run in mine if run["kind"] == "idle"],
    )


def cost_table(figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """Returns the table of costs in Markdown, a row per peer."""
    head = ["", *(f"CPU s, {_millions(size)}" for size in sizes), "marginal per million", "peak memory, GB"]
    head += ["written, MB", "broker's CPU s", "idle, CPU s a minute", "load"]
    rows = []
    for each in figures:
        marginal = each.value("marginal", sizes)
        cells = [each.peer.title, *(_spread(each.cpu.get(size, ())) for size in sizes)]
        cells += ["–" if marginal is None else f"{marginal:.1f}", _spread(each.rss), _spread(each.written, 0)]
        rows.append([*cells, _spread(each.broker_cpu), _spread(each.idle), _spread(each.load, 0)])
    return (
        table(head, rows)
        + "\n\nMemory, bytes and the broker's CPU are those of the smaller backlog, which all peers have."
    )


def unequal_load(figures: Sequence[Figures]) -> str:
    """Returns a warning if peers ran at very different loads, or nothing."""
    loads = [load for each in figures for load in each.load]
    if not _are_unequal(loads):
        return ""
    low, high = min(loads), max(loads)
    warning = f"**The load was {low:.0f} to {high:.0f}: ratios between these rows are no results.**"
    return f"\n\n{warning} Repeat the contests on an idle machine."


def _are_unequal(loads: Sequence[float]) -> bool:
    return max(loads) > UNEQUAL * max(min(loads), OWN_LOAD)


def targets(figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """Returns a line for each of TARGETS that was measured."""
    by_name = {each.peer.name: each for each in figures}
    lines = []
    for figure, other, limit in TARGETS:
        if OURS in by_name and other in by_name:
            ours, theirs = (by_name[name].value(figure, sizes) for name in (OURS, other))
            if ours is not None and theirs is not None:
                loads = [load for name in (OURS, other) for load in by_name[name].load]
                verdict = "reached" if ours <= limit * theirs else "**missed**"
                if _are_unequal(loads):
                    verdict = f"**not judged**, at loads of {min(loads):.0f} to {max(loads):.0f}"
                what = f"{NAMES[figure]}: {ours:.1f}, {ours / theirs:.1f} times that of {by_name[other].peer.title}"
                lines.append(f"* {what}; aimed at ≤ {limit:g} times: {verdict}")
    return "\n".join(lines)


def losses(figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """Returns for each figure the peers that need less than Tidemark."""
    ours = next((each for each in figures if each.peer.name == OURS), None)
    if ours is None:
        return "Tidemark was not measured."
    rows = []
    for figure, name in NAMES.items():
        value = ours.value(figure, sizes)
        others = {each.peer.title: each.value(figure, sizes) for each in figures if each is not ours}
        if value is not None:
            less = {title: other for title, other in others.items() if other is not None and other < value}
            ranked = sorted(less.items(), key=lambda item: item[1])
            fallback = "none" if any(other is not None for other in others.values()) else "no other was measured"
            rows.append(
                [name, f"{value:.1f}", "; ".join(f"{title} {other:.1f}" for title, other in ranked) or fallback]
            )
    return table(["figure", "Tidemark", "less"], rows)


def floor_table(runs: Sequence[Run]) -> str:
    """Returns the CPU of parsers alone, a row per parser."""
    cpu: dict[str, dict[int, list[float]]] = {}
    rss: dict[str, list[float]] = {}
    versions: dict[str, str] = {}
    for run in runs:
        if run["kind"] == "floor":
            name = run["peer"]
            cpu.setdefault(name, {}).setdefault(run["records"], []).append(run["cpu_s"])
            rss.setdefault(name, []).append(run["peak_rss_mib"] / 1_024)
            versions |= run["versions"]
    if not cpu:
        return "Not measured."
    sizes = sorted({size for by_size in cpu.values() for size in by_size})
    rows = []
    for name, by_size in cpu.items():
        marginal = _marginal(by_size, sizes)
        cells = [f"{name} {versions[name]}", *(_spread(by_size.get(size, ()), 2) for size in sizes)]
        rows.append([*cells, "–" if marginal is None else f"{marginal:.2f}", _spread(rss[name])])
    head = ["parser", *(f"CPU s, {_millions(size)}" for size in sizes), "marginal per million", "peak memory, GB"]
    return table(head, rows)


def emission_table(runs: Sequence[Run], peers: Sequence[Peer]) -> str:
    """Returns the sums of differences for each peer, kind and size."""
    groups: dict[tuple[Peer, str, int], list[Run]] = {}
    for peer in peers:
        for run in runs:
            if run["peer"] == peer.name and run["kind"] != "idle":
                groups.setdefault((peer, run["kind"], run["records"]), []).append(run)
    rows = []
    for (peer, kind, records), group in groups.items():
        numbers = [f"{sum(run[name] for run in group):,}" for name in ("expected", "emitted", *DIFFERENCES)]
        durable = "; ".join(
            f"{run['durable_at_kill']:,} of {run['sent_before_kill']:,}" for run in group if kind == "killed"
        )
        rows.append([peer.title, peer.promise, kind, durable or "–", f"{records:,}", str(len(group)), *numbers])
    head = ["peer", "promise", "run", "durable when killed, of those sent", "records", "runs", "expected", "emitted"]
    return table([*head, *DIFFERENCES], rows)


def profile_table(runs: Sequence[Run], peers: Sequence[Peer]) -> str:
    """Returns the threads with the most CPU in each peer's largest backlog."""
    rows = []
    for peer in peers:
        mine = [run for run in runs if run["peer"] == peer.name and run["kind"] == "backlog"]
        if mine:
            last = max(mine, key=lambda run: run["records"])
            most = list(last["cpu_s_by_thread"].items())[:MOST_THREADS]
            rows.append([peer.title, f"{last['cpu_s']:.1f}", "; ".join(f"{name} {cpu_s:.1f}" for name, cpu_s in most)])
    return table(["peer", "CPU s", "of that by thread"], rows)


def broken_promises(runs: Sequence[Run]) -> list[str]:
    """Returns a line for each run that broke its promise.

    A peer without a promise has to be exact when it is not killed. Parsers alone emit nothing.
    """
    broken = []
    for run in runs:
        if run["kind"] == "floor":
            continue
        at_least_once = run["promise"] == Promise.AT_LEAST_ONCE and run["kind"] == "killed"
        if not run["is_complete" if at_least_once else "is_exact"]:
            broken.append(f"{run['peer']}, {run['kind']}, {run['records']:,} records: not what it promises")
    return broken


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _spread(values: Sequence[float], digits: int = 1) -> str:
    if not values:
        return "–"
    middle = f"{median(values):,.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def _millions(records: int) -> str:
    return f"{records / 1_000_000:g} M"


def _conditions(runs: Sequence[Run]) -> str:
    machines = {tuple(run["machine"].items()) for run in runs}
    load = [run[name] for run in runs for name in ("began_load", "load")]
    lines = [", ".join(f"{name} {value}" for name, value in machine) for machine in sorted(machines)]
    lines.append(
        f"load average around the runs: {min(load):g} to {max(load):g}; above the number of cores a second of CPU does "
        "less work than on an idle machine"
    )
    return "\n".join(f"* {line}" for line in lines)


def _settings(runs: Sequence[Run], peers: Sequence[Peer]) -> str:
    def listed(parts: dict[str, str]) -> str:
        return "; ".join(f"{name} {value}" for name, value in parts.items())

    last = {run["peer"]: run for run in runs}
    rows = [
        [peer.title, listed(last[peer.name]["versions"]), listed(last[peer.name]["settings"])]
        for peer in peers
        if peer.name in last
    ]
    return table(["peer", "versions", "settings"], rows)


def _plot(figures: Sequence[Figures], sizes: Sequence[int]) -> str:
    """Draws CPU by records and marginal CPU as an SVG.

    Each peer has a row, and each value a bar with its figure, so no colour needs to be told from another.
    """
    ranked = sorted(figures, key=lambda each: each.value("marginal", sizes) or math.inf)
    cpu = [[median(each.cpu[size]) if size in each.cpu else None for each in ranked] for size in sizes]
    marginal = [each.value("marginal", sizes) for each in ranked]
    # The panels of CPU have one scale.
    highest = [max(filter(None, chain(*cpu)))] * len(sizes) + [max(filter(None, marginal), default=1)]
    headings = [*(f"CPU s, {_millions(size)} records" for size in sizes), "marginal CPU s per million records"]
    drawn = []
    for panel, (heading, values, most) in enumerate(zip(headings, [*cpu, marginal], highest, strict=True)):
        left = panel * PANEL_WIDTH
        drawn.append(Markup('<text x="{}" y="0" font-weight="bold">{}</text>').format(left, heading))
        for row, value in enumerate(values, start=1):
            y, figure = row * ROW_HEIGHT, "–" if value is None else f"{value:.1f}"
            length = max(0, round(LONGEST_BAR * (value or 0) / most))
            bar = Markup('<rect x="{}" y="{}" width="{}" height="12" fill="{}"/>').format(left, y, length, BLUE)
            drawn += [bar, Markup('<text x="{}" y="{}">{}</text>').format(left + length + 5, y + 11, figure)]
    for row, each in enumerate(ranked, start=1):
        title = each.peer.title.strip("*")
        drawn.append(Markup('<text x="0" y="{}">{}</text>').format(row * ROW_HEIGHT - 6, title))
    size = len(headings) * PANEL_WIDTH, (len(ranked) + 1) * ROW_HEIGHT
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-10 -20 {0} {1}" width="{0}" height="{1}"'
        ' font-family="system-ui, sans-serif" font-size="13">'
        '<rect x="-10" y="-20" width="{0}" height="{1}" fill="white"/>{2}</svg>\n'
    ).format(*size, Markup("\n").join(drawn))
