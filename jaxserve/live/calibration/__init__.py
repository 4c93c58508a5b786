"""Latency tables of running engines: measured, fitted and checked."""
