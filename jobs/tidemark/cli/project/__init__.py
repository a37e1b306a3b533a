"""Commands for the files of a project."""
