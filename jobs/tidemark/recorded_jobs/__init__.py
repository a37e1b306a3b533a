"""Queries of a team's own jobs, as listeners recorded them."""
