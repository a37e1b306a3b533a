"""Types, values and keys of whole columns."""
