"""The simulators compared with measurements, and with each other."""
