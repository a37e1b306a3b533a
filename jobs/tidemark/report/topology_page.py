"""Pages that show how topologies are doing now: HTML files without script that refresh themselves (ring 2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tidemark.report.colors import BLUE, GREEN, ORANGE, PINK, RED, SILENT, SKY, YELLOW
from tidemark.report.drawing import BOX, drawing
from tidemark.report.page_model import VERDICT_WORDS, Standing
from tidemark.report.path_facts import Row
from tidemark.report.templates import REFRESH_S, length, template
from tidemark.spec.topology import Topology

SOON_S = 3
"""The start page is asked for again so soon while a line of it is not known yet."""
COLORS = (BLUE, ORANGE, SKY, GREEN, PINK, RED, YELLOW, SILENT)


def start_page(lines: Sequence[Row], *, at: datetime, folder: Path) -> str:
    """The page with one line per topology: *lines* are page models, or have a name alone and are not known yet.

    *folder* is where topology files belong, *at* the instant that the page shows.
    """
    is_whole = all("verdict" in line for line in lines)
    known = [{"verdict": None, "error": None, "cause": None, "slas": None, "report": None, **line} for line in lines]
    return template("report/start_page.html.j2").render(
        lines=known, words=VERDICT_WORDS, at=at, folder=str(folder), refresh_s=REFRESH_S if is_whole else SOON_S
    )


def topology_page(model: Row, told: Row | None, topology: Topology | None) -> str:
    """The page of a *model*, and of *told*, what `tidemark topology` says.

    Both that and *topology* are None where the file of the topology is not valid.
    """
    path = (model.get("path") or {}).get("path", [])
    moving = {row["operator"]: row for row in told["operators"]} if told else {}
    checked_at = model["slas"]["checked_at"] if "slas" in model else None
    return template("report/topology_page.html.j2").render(
        model={"error": None, **model},
        told=told,
        topology=topology,
        path=path,
        drawing=drawing(topology.upstreams, path) if topology else None,
        box=BOX,
        operators={name: _operator(row, moving.get(name)) for name, row in model.get("operators", {}).items()},
        words=VERDICT_WORDS,
        colors=COLORS,
        spent_ms=sum(part["ms"] for part in (model.get("path") or {}).get("spent", [])),
        checked_ago_ms=None if checked_at is None else (model["at"] - checked_at).total_seconds() * 1_000,
        refresh_s=REFRESH_S,
    )


def problem_page(title: str, detail: str, *, start: str) -> str:
    """The page that says why another one cannot be shown; *start* is the address of the start page."""
    return template("report/problem_page.html.j2").render(title=title, detail=detail, start=start, refresh_s=REFRESH_S)


def _operator(standing: Row, moving: Row | None) -> Row:
    """What the box of an operator shows: its *standing* in the page model, and its *moving* average."""
    latency_ms = moving["moving_average_ms"] if moving else None
    is_down = standing["verdict"] == Standing.NOT_RUNNING
    word = standing["state"].replace("_", " ") if is_down else VERDICT_WORDS[standing["verdict"]]
    broken = f": {', '.join(standing['slas'])}" if standing["slas"] else ""
    return {
        "latency_ms": latency_ms,
        "said": f"moving average {length(latency_ms)}, {word}{broken}",
        "share": None,
        "verdict": standing["state"] if is_down else standing["verdict"],
        "word": word,
    }
