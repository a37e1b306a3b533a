"""Runs the local stack's processes, with a real broker, on one machine."""
