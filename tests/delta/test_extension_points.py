"""An SLA of a made-up measure has a verdict, an alert and a line on the page."""

from __future__ import annotations

import json
from pathlib import Path

from support.made_up import FUNCTION, MEASURE, METRIC, OPERATOR, installed, run_with

CHECK = """
import json, sys
from pathlib import Path

from support.play import Play, ms
from support.topologies import NEWEST
from tidemark.model.project.layout import Layout
from tidemark.model.slas.sla_spec import parse
from tidemark.query.sql import Warehouse
from tidemark.reports.pages.page_model import page_model
from tidemark.reports.promises import promises
from tidemark.sla.check import run
from tidemark.sla.page import sla_page

play = Play(NEWEST, Path(sys.argv[1]))
for second in (1, 2, 3):
    play.batch([play.row("events", ms(second), key="a", id="a", v=7)], at_ms=ms(second))
sla = {"subject": "newest", "measure": "unchanged_updates", "error_above": 1, "owner": "ann"}
specs = parse({"play": {"is_calm": sla}}, play.topology, file="slas.toml")
run(Layout(play.home), play.topology, specs, at_ms=ms(9), run_id="r")
tables = Warehouse(play.home)
(result,) = tables.ask("FROM sla_results").objects
(alert,) = tables.ask("FROM alerts").objects
model = page_model(tables, Layout(play.home), play.topology, promises(specs), at_ms=ms(9))
found = {"verdict": result["verdict"], "message": result["message"]}
found |= {"alert": alert["message"], "unit": alert["unit"], "observed": alert["observed"], "culprit": alert["culprit"]}
print(json.dumps({**found, "page": sla_page(play.home, "play", model)}))
"""


def test_a_made_up_measure_is_judged_told_and_shown(tmp_path: Path) -> None:
    (site := tmp_path / "site").mkdir()
    found = json.loads(run_with(installed(site, {"measures": MEASURE}), CHECK, str(tmp_path / "play"), folder=tmp_path))
    # Two of three equal updates change nothing.
    said = "unchanged updates of newest in 10 min: 2; error above 1"
    assert (found["verdict"], found["message"], found["alert"]) == ("error", said, said)
    assert (found["unit"], found["observed"], found["culprit"]) == ("changes", 2, "newest")
    assert f"U{said[1:]}" in found["page"]


RUN = """
import json, sys
from pathlib import Path

from support.play import Play, ms
from support.topologies import EVENTS, operators
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.layout import Layout

play = Play(EVENTS + operators(
    small={"kind": "cap", "input": "events", "column": "v", "at_most": 5},
    products={"kind": "aggregate", "input": "small", "key": ["id"], "aggregates": {"p": "product(v)"}},
    board={"kind": "sink", "input": "products", "table": "board"},
), Path(sys.argv[1]))
for second, values in ((1, [2, 3]), (2, [7, 5])):
    rows = [play.row("events", ms(second), key="a", id="a", v=value) for value in values]
    play.batch(rows, at_ms=ms(second))
of_small = [row for row in play.rows("operator_batches") if row["operator"] == "small"]
counts = [(row["records_in"], row["passed"], row["filtered"]) for row in of_small]
exporter = Exporter(Layout(play.home), lambda: [play.topology], clock=lambda: ms(9))
sent = [sample.value for sample in exporter.samples() if sample.metric == "tidemark_kept_updates"]
print(json.dumps({"results": [row["p"] for row in play.rows("board")], "counts": counts, "sent": sent}))
"""


def test_a_made_up_operator_function_and_metric_work_on_the_same_records(tmp_path: Path) -> None:
    (site := tmp_path / "site").mkdir()
    packages = installed(site, {"operators": OPERATOR, "aggregate_functions": FUNCTION, "metrics": METRIC})
    found = json.loads(run_with(packages, RUN, str(tmp_path / "play"), folder=tmp_path))
    # 2 · 3 in the first batch; 7 is above the limit, so that 6 · 5 follows in the second.
    assert found["results"][-1] == 30
    assert found["counts"] == [[2, 2, 0], [2, 1, 1]]
    # The product is sent on once in each batch, or with each record: 2, 6, 30.
    assert found["sent"] == [len(found["results"])]
