"""Runs `tidemark demo` on one day of flights, played fast."""

import re
import subprocess
import sys
from pathlib import Path

from support.recorded_facts import ages_and_sums
from tidemark.model.project.files import CHECKOUT
from tidemark.model.topology import load
from tidemark.query.sql import Warehouse

PAGES = """
    SELECT slas, incidents FROM alerts
    WHERE audience IS NULL AND change = 'opened' AND cause = 'operator' AND cause_operator = 'carrier_state'
"""


def test_the_demo_finds_no_problem_and_leaves_no_process(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("tidemark"), "--home", tmp_path]
    played = [*command, "demo", "--to", "2013-06-28", "--speed", "5760"]
    done = subprocess.run(played, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-2_000:]}"
    (unplanned,) = re.findall(r"(\d+) quarantined = \1 injected", done.stdout)
    assert int(unplanned) > 0
    assert re.search(
        r"^  \d+ rows of operator_batches, one per batch and operator: all close$", done.stdout, re.MULTILINE
    )
    # The operator that the demo slows down is one page, whose link leads to its incident. A slow machine may have more.
    assert len(re.findall(r"^  alert: .*carrier_state_is_quick.* opened \(error\)", done.stdout, re.MULTILINE)) == 1
    sent = done.stdout.partition("which leaves Airflow running):\n")[2]
    assert sent.startswith("  [critical] flights: operator at carrier_state: ")
    assert "\n  Look at: carrier_state\n" in sent
    assert re.search(r"^  Look here: http.*/tidemark/pages/flights/slas#", sent, re.MULTILINE)
    assert "/tidemark/pages/flights/operators/carrier_state\n" in sent
    (page,) = Warehouse(tmp_path / "warehouse").ask(PAGES).objects
    assert "carrier_state_is_quick" in page["slas"]
    texts = [file.read_text() for file in (tmp_path / "airflow" / "logs").rglob("*task_id=check_sla/*.log")]
    assert f"/tidemark/pages/flights/slas#{page['incidents'][0]}" in "".join(texts)
    assert "/tidemark/pages/flights/operators/carrier_state" in "".join(texts)
    ages = ages_and_sums(tmp_path / "warehouse", load(CHECKOUT / "jobs" / "topologies" / "flights.toml"))
    assert ages.height
    assert ages["sum_ms"].to_list() == ages["age_ms"].to_list()
    status = subprocess.run([*command, "status"], capture_output=True, text=True, check=False)
    assert "running" not in status.stdout
