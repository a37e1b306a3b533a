"""Explains why an operator gives no results, from the tables."""
