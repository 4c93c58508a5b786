"""Nodes: their registration, their share of the sessions, and cleanup after lost ones."""
