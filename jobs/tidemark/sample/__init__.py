"""Samples a topic, and proposes a topology for it.

`check --live` uses the samples, too.
"""
