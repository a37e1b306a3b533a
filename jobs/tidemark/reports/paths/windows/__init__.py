"""Groups streaming windows by the operators that finished them."""
