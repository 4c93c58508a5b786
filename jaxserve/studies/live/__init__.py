"""Agents trained in the simulator, on a real engine and as the simulators predict them."""
