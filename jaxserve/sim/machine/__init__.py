"""What one engine iteration costs on a GPU: seconds, bytes, joules and dollars."""
