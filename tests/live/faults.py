"""What may go wrong with a deployment, and how it is well again."""

from __future__ import annotations

from collections.abc import Callable

from tests.live.deployment import Deployment, knobs_answer, locked

FAULTS: dict[str, tuple[Callable[[Deployment], object], Callable[[Deployment], object], str]] = {
    "the engine was restarted": (
        lambda one: setattr(one, "engine_id", "b"),
        lambda one: None,
        "an engine was restarted",
    ),
    "a counter went back": (
        lambda one: setattr(one, "counters", 0.0),
        lambda one: None,
        "the engines' counter of output_tokens went back",
    ),
    "the gateway was restarted": (
        lambda one: setattr(one, "gateway", "two"),
        lambda one: None,
        "the gateway was restarted",
    ),
    "metrics are garbage": (
        lambda one: one.engine_fields.update(kv_use=float("nan")),
        lambda one: one.engine_fields.clear(),
        "the engines: vllm-0: kv_use is nan",
    ),
    "the engine cannot be read": (
        lambda one: one.engine_fields.update(error="engine vllm-0 cannot be reached"),
        lambda one: one.engine_fields.clear(),
        "no engine shows its metrics: engine vllm-0 cannot be reached",
    ),
    "the window is garbage": (
        lambda one: one.window_fields.update(classes=7),
        lambda one: one.window_fields.clear(),
        "the window: classes is 7; it must be a JSON object",
    ),
    "the window is forgotten": (
        lambda one: one.window_fields.update(complete=False),
        lambda one: one.window_fields.clear(),
        "the gateway does not have all of the window",
    ),
    "the gateway cannot be reached": (
        lambda one: setattr(one, "unreachable", True),
        lambda one: setattr(one, "unreachable", False),
        "the gateway cannot be reached",
    ),
    "an action is not acknowledged": (
        lambda one: one.lies.update(batch_cap=7.0),
        lambda one: one.lies.clear(),
        "batch_cap is 7.0 after it was told",
    ),
    "an engine refuses": (
        lambda one: setattr(one, "refuses", "engine vllm-0 refused"),
        lambda one: setattr(one, "refuses", None),
        "engine vllm-0 refused",
    ),
    "an answer is slow": (
        lambda one: setattr(one, "slow_s", 0.6),
        lambda one: setattr(one, "slow_s", 0.0),
        "a decision missed its deadline",
    ),
    "the machine stood still": (
        lambda one: setattr(one, "stopped_s", 7.3),
        lambda one: None,
        "the window took 8.3 s in place of 1 s",
    ),
    "a knob is gone": (
        lambda one: setattr(one, "answers", knobs_answer(batch_cap=locked())),
        lambda one: setattr(one, "answers", knobs_answer()),
        "batch_cap can no longer be turned",
    ),
    "knobs are garbage": (
        lambda one: setattr(one, "answers", {"knobs": 7}),
        lambda one: setattr(one, "answers", knobs_answer()),
        "the knobs: engines is missing",
    ),
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
