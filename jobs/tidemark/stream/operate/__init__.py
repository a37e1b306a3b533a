"""Runs each kind of operator over a batch.

Each kind has a file, listed in `registry.py`.
"""
