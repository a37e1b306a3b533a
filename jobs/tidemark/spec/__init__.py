"""Ring 0: what the files of a project say, and what its tables are; standard library only."""
