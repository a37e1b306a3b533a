from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from tidemark.model.project.files import CHECKOUT, VARIABLE, Project
from tidemark.reports.batch_job import interval_parser, load_usable_slas, parse, topology

TOPOLOGIES = Project(CHECKOUT).topologies

GOOD = {"--warehouse": "wh", "--topology": "flights", "--from": "1970-01-01T00:00:01Z", "--to": "1970-01-01T00:00:02"}


def parsed(**changes):
    arguments = {**GOOD, **{f"--{flag}": value for flag, value in changes.items()}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["job", *(part for pair in arguments.items() for part in pair)])
        return parse(interval_parser("what it does"))


def test_a_batch_job_gets_a_layout_a_topology_and_instants():
    given = parsed()
    assert (given.warehouse.warehouse, given.topology.name) == (Path("wh"), "flights")
    assert (given.start_ms, given.end_ms) == (1_000, 2_000)


def test_a_topology_may_be_a_file_of_one_s_own(tmp_path):
    shutil.copy(TOPOLOGIES / "flights.toml", tmp_path / "mine.toml")
    assert topology(str(tmp_path / "mine.toml")) == topology("flights")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"topology": "trains"}, "argument --topology: there is no topology 'trains' in .*; known: flights"),
        ({"to": "noon"}, "argument --to: an instant must be in ISO 8601, got 'noon'; write"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_with_its_remedy(changes, message, capsys):
    with pytest.raises(SystemExit):
        parsed(**changes)
    assert re.search(message, capsys.readouterr().err)


def test_an_unusable_sla_is_a_warning_and_the_others_stay(tmp_path, monkeypatch, caplog):
    sla = '[flights.{}]\nsubject = "flight_board"\nmeasure = "latency_p99"\nowner = "o"\nerror_after = "{}"\n'
    found = topology("flights")
    (tmp_path / "topologies").mkdir()
    (tmp_path / "expectations").mkdir()
    (tmp_path / "expectations" / "slas.toml").write_text(sla.format("in_time", "2 min") + sla.format("quick", "2 mins"))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert [spec.name for spec in load_usable_slas(found)] == ["in_time"]
    (warning,) = caplog.messages
    assert warning.startswith("slas.toml: flights.quick.error_after: is '2 mins', which has no known unit")


def test_reports_of_a_project_without_slas_have_no_promises(tmp_path, monkeypatch, caplog):
    found = topology("flights")
    (tmp_path / "topologies").mkdir()
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert load_usable_slas(found) == ()
    assert "slas.toml is missing" in caplog.text
