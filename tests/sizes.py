"""Sizes that tests agree on.

A program is compiled for each number of episodes and for each horizon. Tests that take these, and
the horizon of the tasks themselves, find it in the cache, whichever file compiled it. Commands in
the documentation play 4 episodes where a test runs them.
"""

import pytest

from jaxserve.tasks.spec import task_names

EPISODES = 16
"""of a rollout or an evaluation."""

SEARCH_EPISODES = 8
"""of a search."""
SEARCH_HORIZON = 12
"""of a search, windows: long enough for a queue, too short for most switches."""

_LIKE_ANOTHER = ("azure_code", "azure_conversation", "fleet_chat", "fleet_reasoning")


def each_task(slow: tuple[str, ...] = (), deep: tuple[str, ...] = ()) -> list[object]:
    """Parameters of a test of every task.

    Tasks that differ from another one in numbers alone, but whose programs are compiled for them,
    run with the deep tests.

    Args:
      slow: tasks that run with the slow tests.
      deep: further tasks that run with the deep tests.
    """
    later = dict.fromkeys((*_LIKE_ANOTHER, *deep), pytest.mark.deep)
    marks = dict.fromkeys(slow, pytest.mark.slow) | later
    return [
        pytest.param(name, marks=[marks[name]] if name in marks else []) for name in task_names()
    ]
