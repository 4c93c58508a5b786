"""Measurement: objectives, records of requests, Prometheus metrics and windows of time."""
