"""The driver of one stream: from rows that Spark reads to commits."""
