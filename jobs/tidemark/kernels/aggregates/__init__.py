"""Aggregates keys and windows."""
