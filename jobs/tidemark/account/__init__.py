"""The account of time: every millisecond of a late result has one owner, and the parts add up to its age.

`docs/decisions/0144-parts-of-an-age-are-one-walk.md` says how. Functions here take facts as frames, which `facts.py`
lists, and return the parts; only `warehouse.py` and `counts.py` read tables.
"""
