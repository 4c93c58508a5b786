"""Two simulators, and what both need: a machine, its latency table, traffic."""
