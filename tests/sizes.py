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

_OF_THEIR_OWN = ("fleet_mixed", "trace_replay")
_LIKE_ANOTHER = ("azure_code", "azure_conversation", "fleet_chat", "fleet_reasoning")


def each_task(deep: tuple[str, ...] = ()) -> list[object]:
    """Parameters of a test of every task.

    Tasks whose programs serve hardly any other test run with the slow tests. Tasks that differ from
    another one in numbers alone, but whose programs are compiled for them, run with the deep tests.

    Args:
      deep: further tasks that run with the deep tests.
    """
    marks = dict.fromkeys(_OF_THEIR_OWN, pytest.mark.slow)
    marks |= dict.fromkeys((*_LIKE_ANOTHER, *deep), pytest.mark.deep)
    return [
        pytest.param(name, marks=[marks[name]] if name in marks else []) for name in task_names()
    ]
