"""Finds each cause that holds results back."""
