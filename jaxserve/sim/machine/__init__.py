"""Cost of an engine iteration on a GPU: seconds, bytes, joules and dollars."""
