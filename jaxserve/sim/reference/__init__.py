"""The reference simulator: every request and every iteration by itself, in plain Python."""
