"""Follows single records and rows, and counts what became of all."""
