"""Autoscaling rules: played, tuned to a user's own traffic, confirmed and exported."""
