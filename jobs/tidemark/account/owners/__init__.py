"""The owners of time, each in a file of this folder."""
