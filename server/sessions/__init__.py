"""Sessions: episodes, the compiled programs that step them, the log that keeps them."""
