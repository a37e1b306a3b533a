"""A bound or a trigger that alone exceeds a promise is named."""

import tomllib

from support.topologies import NEWEST
from tidemark.model.slas import sla_spec
from tidemark.model.topology import parse
from tidemark.reports.promises import cannot_be_kept


def named(toml: str, limit: str) -> list[str]:
    """Returns the warnings for an SLA of *limit* on records of `board`."""
    topology = parse(tomllib.loads(toml), file="play.toml")
    promise = {"subject": "board", "measure": "latency_p99", "error_after": limit, "owner": "o"}
    return list(cannot_be_kept(sla_spec.parse({"play": {"quick": promise}}, topology, file="slas.toml"), topology))


def test_a_promise_beyond_bound_and_trigger_is_kept_quiet_about():
    assert named(NEWEST.replace('bound = "1 s"', 'bound = "3 s"'), "4 s") == []


def test_a_bound_that_exceeds_a_promise_is_named():
    (line,) = named(NEWEST.replace('bound = "1 s"', 'bound = "5 s"'), "4 s")
    assert line.startswith("play.quick promises 4 s of board, and the bound of events alone is 5 s: ")


def test_a_trigger_that_exceeds_a_promise_is_named():
    (line,) = named(NEWEST.replace('name = "play"', 'name = "play"\ntrigger = "10 s"'), "4 s")
    assert line == "play.quick promises 4 s of board, and the trigger alone is 10 s; shorten it, or raise the limit"
