"""Reads values that several kinds of settings share."""
