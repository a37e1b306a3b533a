"""Keeps the state of operators, in memory and in files."""
