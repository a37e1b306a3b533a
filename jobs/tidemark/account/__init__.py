"""The account of time: every millisecond of a late result has one owner, and the parts add up to its age.

`docs/decisions/0144-parts-of-an-age-are-one-walk.md` says how. The functions here are pure: facts come in as frames
(`facts.py` lists them all), and parts go out.
"""
