"""Engines behind the gateway: configuration, admission, connections and their metrics."""
