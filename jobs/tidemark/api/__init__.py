"""Tidemark inside existing PySpark jobs; see docs/api.md."""

from tidemark.api.change import State, changed
from tidemark.api.hops import hops, with_hop
from tidemark.api.listen import Listener, listen
from tidemark.api.measure import measured

__all__ = ["Listener", "State", "changed", "hops", "listen", "measured", "with_hop"]
