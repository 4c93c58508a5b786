"""A model that operates a server: it calls the tool ``step`` that it is offered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

INSTRUCTION = "Your episode is {{ENVIRONMENT_SESSION_ID}}. Call step, window by window."
_EPISODE = re.compile(r"Your episode is ([\w-]+)\.")


def operator(caps: list[float]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A script for an engine: a call with each of these caps, one after the other; then words.

    It knows its episode from what it is told, and its tool from what it is offered.
    """

    def script(asked: dict[str, Any]) -> dict[str, Any]:
        turn = sum(one["role"] == "assistant" for one in asked["messages"])
        names = [tool["function"]["name"] for tool in asked.get("tools", ())]
        (step,) = (name for name in names if name.endswith("step"))
        found = _EPISODE.search(json.dumps(asked["messages"]))
        assert found is not None, asked["messages"]
        if turn == len(caps):
            return {"reply": "done"}
        arguments = {"session_id": found[1], "action": {"batch_cap": caps[turn]}}
        return {
            "reply": "",
            "calls": [step],
            "arguments": json.dumps(arguments),
            "turn": f"{turn}_",
        }

    return script
