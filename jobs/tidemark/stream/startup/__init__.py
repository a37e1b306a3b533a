"""Checks and loads what a stream left when it ended."""
