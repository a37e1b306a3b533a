"""How a vector is held against what Tidemark says."""

from collections.abc import Mapping

import pytest

NONE_YET = -(2**63)
"""How Flink writes "no watermark yet"."""
NO_LIMIT = 2**63 - 1
"""How Flink writes "idle", and "no limit"."""


def check(expected: Mapping, actual: Mapping) -> None:
    """Checks all that a vector has as *expected*.

    An expectation that the runner does not know fails.
    """
    unknown = set(expected) - set(actual)
    if unknown:
        pytest.fail(
            f"the vector expects {sorted(unknown)}, of which its runner knows nothing; it knows {sorted(actual)}"
        )
    assert {name: actual[name] for name in expected} == dict(expected)


def choose(what: str, name: str, known: Mapping):
    """Returns the entry of *known* with a *name*; an unknown one fails."""
    if name not in known:
        pytest.fail(f"unknown {what} {name!r}; known: {', '.join(sorted(known))}")
    return known[name]


def only(vector: Mapping, *fields: str) -> None:
    """Fails when the vector has a field that its runner would ignore."""
    said = {"id", "origin", "test", "note", "kind", "expected", "derived", *fields}
    if extra := set(vector) - said:
        pytest.fail(f"the vector has {sorted(extra)}, which its runner does not use; it uses {sorted(fields)}")
