"""Runs each kind of operator over a batch; `registry.py` lists them."""
