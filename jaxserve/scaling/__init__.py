"""Autoscaling rules that operators run, and what they read; pure functions."""
