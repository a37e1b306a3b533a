"""Merges facts for reports."""
