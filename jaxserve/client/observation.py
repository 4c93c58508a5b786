"""What reset and step return."""

from __future__ import annotations

from typing import Any, NamedTuple


class Observation(dict[str, Any]):
    """Fields of ``jaxserve.ServeObservation``: ``o["queue_depth"]`` or ``o.queue_depth``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the observation has no {name!r}") from None


class StepResult(NamedTuple):
    """The four values of ``step``."""

    observation: Observation
    reward: float
    done: bool
    info: dict[str, Any]
    """session_id, episode_id, task_id, seed, step, reward_parts and more."""


def parse_step(data: dict[str, Any]) -> StepResult:
    """A server's answer to reset or step, of HTTP and WebSocket alike."""
    fields = dict(data["observation"])
    info = fields.pop("metadata", None) or data.get("metadata") or {}
    return StepResult(Observation(fields), data["reward"], bool(data["done"]), info)
