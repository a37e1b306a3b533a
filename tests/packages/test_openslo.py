"""OpenSLO's own validator accepts published SLOs, and refuses others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from packages.fresh import PROJECT

from support.command_line import tidemark

pytestmark = pytest.mark.long  # builds OpenSLO's SDK from Go's module proxy or cache
HERE = Path(__file__).parent / "openslo"
BUILT_WITHIN_S = 600
OLDEST_GO = (1, 25, 5)
SLAS = """
[flights.in_time]
subject = "carrier_delays"
owner = "Carrier desk (EU)"
runbook = "https://wiki.example.org/late"
objective = { latency = "1500 ms", target = 0.99, window = "28 d", min_records = 50 }

[flights.board_p]
subject = "flight_board"
owner = "desk"
objective = { latency = "30 s", target = 0.9999 }
"""


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of this folder, with the versions of its go.sum."""
    if (go := shutil.which("go")) is None:
        pytest.skip("not run: Go is not installed")
    installed = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < OLDEST_GO:
        pytest.skip(f"not run: this is {installed.strip()}, and the validator needs Go 1.25.5 or newer")
    program = tmp_path_factory.mktemp("openslo") / "validate"
    build = [go, "build", "-mod=readonly", "-o", str(program), "."]
    ran = subprocess.run(
        build, cwd=HERE, env={**os.environ, "GOTOOLCHAIN": "local"}, capture_output=True, text=True,
        timeout=BUILT_WITHIN_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return program


def validated(program: Path, content: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(program)], input=content, capture_output=True, text=True, timeout=60, check=False)


def published(folder: Path) -> str:
    (folder / "topologies").mkdir()
    (folder / "expectations").mkdir()
    shutil.copy(PROJECT / "jobs" / "topologies" / "flights.toml", folder / "topologies")
    (folder / "expectations" / "slas.toml").write_text(SLAS, encoding="utf-8")
    done = tidemark(folder, "publish", "openslo")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_published_slos_are_valid_and_a_changed_one_is_not(validator: Path, tmp_path: Path) -> None:
    content = published(tmp_path)
    ran = validated(validator, content)
    assert (ran.returncode, ran.stdout) == (0, "SLO in-time\nSLO board-p\n"), ran.stderr
    for place, value, said in (
        (("metadata", "name"), "in_time", "metadata.name"),
        (("spec", "objectives", 0, "target"), 1.5, "target"),
        (("spec", "alertPolicies", 0, "spec", "notificationTargets", 0, "targetRef"), "Desk", "targetRef"),
        (("spec", "alertPolicies", 0, "spec", "conditions", 0, "spec", "condition", "op"), "above", "op"),
        (("spec", "timeWindow", 0, "duration"), "28 days", "duration"),
    ):
        first, *others = yaml.safe_load_all(content)
        table = first
        for key in place[:-1]:
            table = table[key]
        table[place[-1]] = value
        ran = validated(validator, yaml.safe_dump_all([first, *others]))
        assert (ran.returncode, said in ran.stderr) == (1, True), (place, ran.stderr)
