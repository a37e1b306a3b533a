"""Defines the tables of a warehouse."""
