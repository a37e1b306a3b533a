"""Rules that look for what holds results back: a file for each kind of cause."""
