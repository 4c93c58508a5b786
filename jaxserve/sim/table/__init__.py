"""Latency tables: built from a cost model, fitted to a load test, kept in a file, looked up."""
