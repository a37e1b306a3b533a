"""Commands that correct a stream."""
