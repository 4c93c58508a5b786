"""Tasks, sessions, nodes and open keys of the service, in one SQLite file."""
