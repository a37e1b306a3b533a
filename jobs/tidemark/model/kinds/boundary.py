"""The operators at the boundary of a sub-topology, for exhaustive matches, which end with `assert_never`."""

from __future__ import annotations

from typing import TypeAlias

from tidemark.model.kinds.repartition import HopSource, Repartition
from tidemark.model.kinds.sink import Sink
from tidemark.model.kinds.source import Source

Reading: TypeAlias = Source | HopSource
"""The operators with `is_source`."""
HandingOut: TypeAlias = Repartition | Sink
"""The operators with `hands_out`."""
