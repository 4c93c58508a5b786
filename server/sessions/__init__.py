"""Sessions: what an episode is, the compiled programs that step it, the log that keeps it."""
