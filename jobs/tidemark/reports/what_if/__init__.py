"""Estimates lateness after a change of an operator."""
