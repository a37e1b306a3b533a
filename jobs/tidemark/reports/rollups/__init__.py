"""Rolls latencies up by hour and day."""
