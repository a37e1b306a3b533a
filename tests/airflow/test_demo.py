"""Runs `tidemark demo` on one day of flights, played fast."""

import re
import subprocess
import sys
from pathlib import Path


def test_the_demo_finds_no_problem_and_leaves_no_process(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("tidemark"), "--home", tmp_path]
    played = [*command, "demo", "--to", "2013-06-28", "--speed", "5760"]
    done = subprocess.run(played, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-2_000:]}"
    (unplanned,) = re.findall(r"(\d+) quarantined = \1 injected", done.stdout)
    assert int(unplanned) > 0
    assert re.search(r"^  \d+ batches × operators: all close$", done.stdout, re.MULTILINE)
    assert re.search(r"^  alert: carrier_state_is_quick opened \(error\)", done.stdout, re.MULTILINE)
    status = subprocess.run([*command, "status"], capture_output=True, text=True, check=False)
    assert "running" not in status.stdout
