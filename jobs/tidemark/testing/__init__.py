"""Runs topologies in memory, over records that are written by hand: `tidemark test`."""
