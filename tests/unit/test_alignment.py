import pytest

from tidemark.errors import InvalidArgument
from tidemark.semantics.alignment import max_allowed_ms, must_wait
from tidemark.semantics.idleness import Activity
from tidemark.semantics.watermark import Progress

IDLE = Progress(watermark_ms=0, activity=Activity.IDLE)


def test_the_limit_is_the_lowest_of_the_group_plus_the_drift():
    group = [Progress(watermark_ms=42), Progress(watermark_ms=44), Progress()]
    assert max_allowed_ms(group, max_drift_ms=1000) == 1042


def test_an_idle_source_limits_nobody():
    assert max_allowed_ms([Progress(watermark_ms=44), IDLE], max_drift_ms=1000) == 1044
    assert max_allowed_ms([IDLE], max_drift_ms=1000) is None
    assert max_allowed_ms([], max_drift_ms=1000) is None


def test_a_limit_that_no_column_can_hold_is_none():
    assert max_allowed_ms([Progress(watermark_ms=2**63 - 5)], max_drift_ms=4) == 2**63 - 1
    assert max_allowed_ms([Progress(watermark_ms=2**63 - 5)], max_drift_ms=5) is None


def test_a_source_waits_only_beyond_the_limit():
    assert not must_wait(1042, allowed_ms=1042)
    assert must_wait(1043, allowed_ms=1042)
    assert not must_wait(None, allowed_ms=1042)
    assert not must_wait(1043, allowed_ms=None)


def test_a_drift_may_be_zero_and_not_negative():
    assert max_allowed_ms([Progress(watermark_ms=42)], max_drift_ms=0) == 42
    with pytest.raises(InvalidArgument, match="got -1"):
        max_allowed_ms([], max_drift_ms=-1)
