from __future__ import annotations

from dataclasses import replace

import pytest

from support.report_warehouse import reading
from tidemark.cli.project.check import check
from tidemark.model.project.files import Project
from tidemark.model.schedules import cores_taken, too_many


def topologies(count, check_every_ms):
    named = reading({"a": (), "b": ("a",)})
    return [replace(named, name=f"t{n}", check_every_ms=check_every_ms) for n in range(count)]


def test_a_check_a_minute_takes_a_fortieth_of_a_core():
    assert cores_taken(topologies(1, 60_000)) == pytest.approx(1.5 / 60 + 10 / 3_600)


def test_schedules_that_do_not_fit_name_what_would():
    # 50 checks a minute of 1.5 CPU s are 1.25 cores, half of two cores is 1; reports of 50 take 500 s of 3,600 s
    sentence = too_many(topologies(50, 60_000), 2)
    assert sentence is not None
    assert sentence.startswith(
        "checks and reports of 50 topologies take about 1.4 of 2 cores; set check_every of t0, t1"
    )
    assert sentence.endswith('to "2 min" or longer')  # 75 CPU s in 0.861 of a core are 87 s
    assert too_many(topologies(50, 120_000), 2) is None


def test_too_many_topologies_need_another_machine():
    sentence = too_many(topologies(500, 86_400_000), 1)
    assert (
        sentence
        == "checks and reports of 500 topologies take about 1.4 of 1 cores; schedule some of them on another machine"
    )


def test_check_warns_of_schedules_and_channels_that_do_not_fit(tmp_path):
    for folder in ("topologies", "expectations"):
        (tmp_path / folder).mkdir()
    source = 'kind = "source"\ntopic = "e"\nfields = "id string, at bigint"\ntimestamp = "at"\nbound = "0 s"\n'
    (tmp_path / "topologies" / "t.toml").write_text(f'name = "t"\ncheck_every = "100 ms"\n[operators.e]\n{source}')

    (tmp_path / "expectations" / "slas.toml").touch()
    (tmp_path / "channels.toml").write_text('[desk]\nkind = "slack"\nowners = ["tidemrk"]\n')

    lines = check([], tmp_path / "warehouse", Project(tmp_path))

    (warning,) = (line for line in lines if line.startswith("check_every: warning: "))
    assert "checks and reports of 1 topologies take about 15.0 of" in warning
    owners = "channels.toml: desk.owners: warning: has 'tidemrk', which no alert has; did you mean tidemark?"
    assert owners in lines
