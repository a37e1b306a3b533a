"""Two checkouts are measured in turns, and their figures compared pair by pair."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from bench import before
from bench.before import Compared, compared

pytestmark = pytest.mark.slow

FIGURE = """
import json, sys
from pathlib import Path
turns = Path(sys.argv[1])
turns.write_text(turns.read_text() + Path.cwd().name[0])
print("a line of its own")
print(json.dumps({"time [s]": 2.0 * len(turns.read_text()), "commits []": len(Path.cwd().name), Path.cwd().name: 1}))
"""


def test_checkouts_take_turns_and_a_figure_of_one_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new", "older"):
        (tmp_path / name / ".venv" / "bin").mkdir(parents=True)
        (tmp_path / name / ".venv" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(before, "HERE", tmp_path / "new")
    turns = tmp_path / "turns"
    turns.touch()
    found = [*compared(FIGURE, (str(turns),), tmp_path / "older", pairs=3)]
    assert turns.read_text() == "onnoon"
    assert found == [
        Compared("time [s]", before=[2.0, 8.0, 10.0], after=[4.0, 6.0, 12.0]),
        Compared("commits []", before=[5, 5, 5], after=[3, 3, 3]),
    ]
    # 4 / 2, 6 / 8 and 12 / 10
    assert str(found[0]).split(maxsplit=2)[2] == "1.200 × (0.750 to 2.000); 8.00 before, 6.00 after"
    assert str(found[1]).split(maxsplit=2)[2] == "5 before, 3 after: the same in every run"


def test_a_figure_that_was_zero_has_no_ratio() -> None:
    assert str(Compared("waits [ms]", [0.0, 1.0], [2.0, 1.0])).endswith("0.50 before, 1.50 after")
