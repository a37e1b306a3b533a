"""Arguments, output and access that commands share."""
