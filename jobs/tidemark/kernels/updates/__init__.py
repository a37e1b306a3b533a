"""Decides and counts the updates of operators."""
