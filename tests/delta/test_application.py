"""Jobs of a team's own under a lease, here without Spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidemark.api.application import ApplicationOptions, run_application
from tidemark.control.folder import Control, Heartbeat
from tidemark.model.project.layout import Layout


class Job:
    """The job `mine.py` of the topology `shop` in *home*."""

    def __init__(self, home: Path) -> None:
        self.home, self.control = home, Control(Layout(home / "warehouse").control("shop", "mine"))

    def run(self, code: str, *arguments: str) -> int:
        file = self.home / "mine.py"
        file.write_text(code)
        names = {"topology": "shop", "sub_topology": "mine", "launch_id": "l", "launched_by": "a test"}
        take_over = {"take_over": False, "silent_after": 60.0}
        place = {"application": file, "argument": [*arguments], "warehouse": self.home / "warehouse"}
        return run_application(ApplicationOptions(**place, **names, **take_over))

    def beat(self) -> Heartbeat:
        beat = self.control.heartbeat()
        assert beat is not None
        return beat


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return Job(tmp_path)


def test_a_job_runs_as_python_would_run_it(job: Job) -> None:
    (job.home / "beside.py").write_text("word = 'found'")
    seen = job.home / "seen"
    text = "f'{__name__} {beside.word} {sys.argv[1:]}'"
    code = f"import sys, beside, pathlib; pathlib.Path({str(seen)!r}).write_text({text})"
    assert job.run(code, "--day", "7") == 0
    assert seen.read_text() == "__main__ found ['--day', '7']"
    assert (job.beat().state, job.beat().reason, job.control.is_held()) == ("drained", None, False)


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise ValueError('no topic orders')", "ValueError: no topic orders"), ("exit(4)", "mine.py ended with 4")],
)
def test_a_job_that_fails_says_why(job: Job, code: str, reason: str) -> None:
    assert job.run(code) == 1
    assert (job.beat().state, job.beat().reason) == ("failed", reason)


def test_a_second_copy_of_a_job_does_not_run(job: Job) -> None:
    first = Control(job.control.home)
    first.acquire()
    assert job.run("raise SystemExit(9)") == 3
    first.release()
    assert job.run("") == 0
    assert job.beat().epoch == 2
