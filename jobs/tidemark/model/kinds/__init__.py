"""A file per kind of operator: value, reader and checks.

The reader reads its TOML keys; the checks are its answers to the questions of `operator.py`.
"""
