"""Ring 2: the driver of one stream, from the rows that Spark read to the commits."""
