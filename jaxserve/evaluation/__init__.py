"""Evaluation of agents on held-out episodes, and the headroom of tasks."""
