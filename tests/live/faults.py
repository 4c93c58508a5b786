"""What may go wrong with a deployment, and how it is well again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.live.deployment import Deployment, knobs_answer, locked

_ENGINE = {"error": "engine vllm-0 cannot be reached"}
_NO_CAP = knobs_answer(batch_cap=locked())
_PASSING: dict[str, tuple[str, Any, str]] = {
    "the engine was restarted": ("engine_id", "b", "an engine was restarted"),
    "a counter went back": ("counters", 0.0, "the engines' counter of output_tokens went back"),
    "the gateway was restarted": ("gateway", "two", "the gateway was restarted"),
    "the machine stood still": ("stopped_s", 7.3, "the window took 8.3 s in place of 1 s"),
}
_LASTING: dict[str, tuple[str, Any, str]] = {
    "metrics are garbage": ("engine_fields", {"kv_use": float("nan")}, "vllm-0: kv_use is nan"),
    "the engine cannot be read": ("engine_fields", _ENGINE, "no engine shows its metrics: "),
    "the window is garbage": ("window_fields", {"classes": 7}, "the window: classes is 7; it must"),
    "the window is forgotten": ("window_fields", {"complete": False}, "does not have all of the"),
    "the gateway cannot be reached": ("unreachable", True, "the gateway cannot be reached"),
    "an action is not acknowledged": ("lies", {"batch_cap": 7.0}, "batch_cap is 7.0 after it was"),
    "an engine refuses": ("refuses", "engine vllm-0 refused", "engine vllm-0 refused"),
    "an answer is slow": ("slow_s", 0.6, "a decision missed its deadline"),
    "a knob is gone": ("answers", _NO_CAP, "batch_cap can no longer be turned"),
    "knobs are garbage": ("answers", {"knobs": 7}, "the knobs: engines is missing"),
}
"""A field of the deployment, its value, and the reason that is told."""


def _setting(field: str, value: Any) -> Callable[[Deployment], object]:
    return lambda one: setattr(one, field, value)


Fault = tuple[Callable[[Deployment], object], Callable[[Deployment], object], str]
FAULTS: dict[str, Fault] = {
    what: (_setting(field, value), lambda one: None, why)
    for what, (field, value, why) in _PASSING.items()
} | {
    what: (_setting(field, value), _setting(field, getattr(Deployment(), field)), why)
    for what, (field, value, why) in _LASTING.items()
}
"""What happens, how it ends, and the reason that is told."""

UNTOLD = (
    "the gateway cannot be reached",
    "an action is not acknowledged",
    "an engine refuses",
    "a knob is gone",
    "knobs are garbage",
)
"""Those in which nobody can tell the best static values: the engine's own are back in force."""
