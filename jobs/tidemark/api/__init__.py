"""Ring 2: Tidemark for PySpark jobs that a team has already, to be called from their own code; docs/api.md shows it."""

from tidemark.api.change import State, changed
from tidemark.api.hops import hops, with_hop
from tidemark.api.listen import Listener, listen
from tidemark.api.measure import measured

__all__ = ["Listener", "State", "changed", "hops", "listen", "measured", "with_hop"]
