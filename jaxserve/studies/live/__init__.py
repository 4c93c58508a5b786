"""Agents that were made in the simulator on a real engine, beside what it predicts of them."""
