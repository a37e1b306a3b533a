"""What analysts see: each name once, over all Delta tables of that name, and the views over those.

Nothing here reads rows: `cli.sql` has DuckDB do that, `spark.register` Spark.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

from tidemark.spec.layout import Layout

VIEWS = Path(__file__).parent / "views"


@dataclass(frozen=True)
class View:
    """A view: its name, what one row is, and one SELECT that Spark SQL and DuckDB read alike.

    Two functions are Spark's, which `cli.sql` has DuckDB know too: unix_millis and get_json_object.
    """

    name: str
    row: str
    select: str


def delta_tables(warehouse: Path) -> Mapping[str, list[Path]]:
    """The Delta tables of *warehouse* by name; a name has one per stream, or one per topology, that writes it."""
    layout = Layout(warehouse)
    patterns = [layout.stream_table("*", "*", "*"), layout.report_table("*", "*")]
    found = defaultdict(list)
    for pattern in patterns:
        for log in sorted(warehouse.glob(str(pattern.relative_to(warehouse) / "_delta_log"))):
            found[log.parent.name].append(log.parent)
    return dict(sorted(found.items()))


def views() -> list[View]:
    """All views, each after those that it reads, else by name."""
    found = {file.stem: _view(file.stem, file.read_text(encoding="utf-8")) for file in sorted(VIEWS.glob("*.sql"))}
    reads = {name: found.keys() & set(re.findall(r"\w+", view.select)) - {name} for name, view in found.items()}
    return [found[name] for name in TopologicalSorter(reads).static_order()]


def _view(name: str, text: str) -> View:
    """The view *name* of a file: comment lines that say what one row is, then its SELECT."""
    comment = re.match(r"(-- .*\n)*", text)
    said = comment.group() if comment else ""
    return View(name, said.replace("-- ", "").replace("\n", " ").strip(), text.removeprefix(said).strip())
