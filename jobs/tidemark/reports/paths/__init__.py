"""Finds and stores the critical paths of windows."""
