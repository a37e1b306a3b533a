"""Tidemark inside existing PySpark jobs.

`listen` records every query of a session without a change to its code. `measured` measures the latency of a
`foreachBatch` function, and `changed` hands it only the rows that change something. `with_hop` and `hops` write and
read the Kafka header in which each stream notes when it had finished a record. See docs/api.md.
"""

from tidemark.api.change import State, changed
from tidemark.api.hops import hops, with_hop
from tidemark.api.listen import Listener, listen
from tidemark.api.measure import measured

__all__ = ["Listener", "State", "changed", "hops", "listen", "measured", "with_hop"]
