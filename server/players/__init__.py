"""Agents and language models that play sessions, and baselines."""
