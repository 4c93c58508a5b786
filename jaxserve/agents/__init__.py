"""Policies, their rollouts, and the searches and planners behind some of them."""
