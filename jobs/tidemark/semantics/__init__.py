"""Ring 0: the rules that decide every number, each with its source; standard library only."""
