"""Comparisons of the simulators with measurements, and with each other."""
