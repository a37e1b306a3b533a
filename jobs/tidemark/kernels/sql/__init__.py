"""Runs the SQL of a topology over frames."""
