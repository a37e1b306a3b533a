"""Random topologies, and what their operators finished when."""

from hypothesis import strategies as st

NAMES = "abcdefg"


def runs(*, sources=3):
    """Strategy of topologies with up to *sources* sources, and a window's EWTs.

    Every operator comes after all that it reads: nothing is clamped.
    """
    operator = st.tuples(st.integers(0, 2 ** len(NAMES) - 1), st.integers(0, 9))
    return st.lists(operator, min_size=2, max_size=len(NAMES)).map(lambda drawn: _run(drawn, sources))


def _run(drawn, sources):
    upstreams, ewt_ms = {}, {}
    for at, (name, (mask, own_ms)) in enumerate(zip(NAMES, drawn, strict=False)):
        read = tuple(before for bit, before in enumerate(NAMES[:at]) if mask >> bit & 1)
        upstreams[name] = read or (("a",) if at >= sources else ())
        ewt_ms[name] = own_ms + max((ewt_ms[before] for before in upstreams[name]), default=100)
    return upstreams, ewt_ms
