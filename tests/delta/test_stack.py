"""Started processes are found and stopped later by any process.

The process that started them may be killed before.
"""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from tidemark.control import process
from tidemark.local.stack import Home

STARTER = """
    import sys, time
    from pathlib import Path
    from tidemark.local import guard
    from tidemark.control import process
    home = Path(sys.argv[1])
    guard.launch(home)
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    for path in (Path("broker/broker"), Path("airflow/scheduler"), Path("warehouse/control/flights/status/driver")):
        process.launch(path.name, sleep, home=home / path.parent, env={})
    print("started", flush=True)
    time.sleep(60)
"""
STARTED = ["airflow/scheduler", "broker/broker", "guard", "warehouse/control/flights/status/driver"]


def test_a_starter_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    home = Home(tmp_path)
    command = [sys.executable, "-c", textwrap.dedent(STARTER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "started\n"
        assert home.running() == STARTED
        os.kill(starter.pid, signal.SIGKILL)
    process.wait_until(lambda: home.running() == [], "an empty home", 20)
