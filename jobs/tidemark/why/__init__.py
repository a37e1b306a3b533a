"""Why an operator gives no results: what the tables say, and what follows from it."""
