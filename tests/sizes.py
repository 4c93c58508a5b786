"""Sizes that tests agree on.

A program is compiled for each number of episodes and for each horizon. Tests that take these, and
the horizon of the tasks themselves, find it in the cache, whichever file compiled it. Commands in
the documentation play 4 episodes where a test runs them.
"""

EPISODES = 16
"""of a rollout or an evaluation."""

SEARCH_EPISODES = 8
"""of a search."""
SEARCH_HORIZON = 12
"""of a search, windows: long enough for a queue, too short for most switches."""
