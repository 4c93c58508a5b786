"""Bodies of requests: what one holds at most."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InputError
from server.wire.error_sentences import checked
from server.wire.request_bodies import MAX_GRADED, GradeBody


def columns(**lists: list[Any]) -> dict[str, Any]:
    """A log with a list for each part."""
    log = {"task_id": "t", "actions": [], "observations": [], "rewards": []} | lists
    return {"episode_log": log}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"actions": [{}] * (MAX_GRADED + 1)}, "actions"),
        ({"episode_log": [{}] * (MAX_GRADED + 1)}, "episode_log"),
        (columns(actions=[{}] * (MAX_GRADED + 1)), "episode_log: actions"),
        (columns(observations=[{}] * (MAX_GRADED + 1)), "episode_log: observations"),
        (columns(rewards=[0.0] * (MAX_GRADED + 1)), "episode_log: rewards"),
    ],
)
def test_no_more_windows_are_graded(body: dict[str, Any], part: str) -> None:
    """One sentence that names the list and the bound, and not all that is in it."""
    with pytest.raises(InputError, match=f"^{part} is .*at most {MAX_GRADED} entries$") as refused:
        checked(GradeBody, body)
    assert len(str(refused.value)) < 200


def test_as_many_as_allowed_pass() -> None:
    """In all three forms."""
    checked(GradeBody, {"actions": [{}] * MAX_GRADED})
    checked(GradeBody, {"episode_log": [{}] * MAX_GRADED})
    checked(GradeBody, columns(actions=[{}] * MAX_GRADED, rewards=[0.0] * MAX_GRADED))
