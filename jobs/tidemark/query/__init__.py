"""Answers SQL over the tables of a warehouse."""
