"""Emits updates: the part that operators share."""
