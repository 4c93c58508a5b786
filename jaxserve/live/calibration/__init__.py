"""A latency table of an engine that is running: it is measured, fitted and checked."""
