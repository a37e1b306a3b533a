"""A project's files and tables; standard library only."""
