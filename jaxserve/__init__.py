"""jaxserve: learn to operate an LLM inference server, in pure JAX.

``make`` gives an environment by a task's name; ``make_action`` gives an action.
docs/architecture.md maps all packages. The import adds two flags to ``XLA_FLAGS``;
``JAXSERVE_XLA_FLAGS=0`` prevents it (docs/simulator.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxserve.runtime.jax_setup import set_xla_flags

if TYPE_CHECKING:
    from jaxserve.env import FEATURE_NAMES, EnvState, ServeEnv
    from jaxserve.errors import InputError
    from jaxserve.registry import make, stack
    from jaxserve.spaces import (
        ACTION_BOUNDS,
        KNOBS,
        OBSERVATION_BOUNDS,
        make_action,
        validate_action,
    )
    from jaxserve.tasks.slos import KindSlo
    from jaxserve.tasks.spec import load_task, task_names
    from jaxserve.types import RewardParts, ServeAction, ServeObservation, TimeStep, WindowMetrics

set_xla_flags()

__version__ = "0.1.0"

# Packages without the simulator, such as the gateway, start without waiting for JAX.
_HOMES = {
    "env": ("FEATURE_NAMES", "EnvState", "ServeEnv"),
    "errors": ("InputError",),
    "registry": ("make", "stack"),
    "spaces": ("ACTION_BOUNDS", "KNOBS", "OBSERVATION_BOUNDS", "make_action", "validate_action"),
    "tasks.slos": ("KindSlo",),
    "tasks.spec": ("load_task", "task_names"),
    "types": ("RewardParts", "ServeAction", "ServeObservation", "TimeStep", "WindowMetrics"),
}

__all__ = [
    "ACTION_BOUNDS",
    "FEATURE_NAMES",
    "KNOBS",
    "OBSERVATION_BOUNDS",
    "EnvState",
    "InputError",
    "KindSlo",
    "RewardParts",
    "ServeAction",
    "ServeEnv",
    "ServeObservation",
    "TimeStep",
    "WindowMetrics",
    "load_task",
    "make",
    "make_action",
    "stack",
    "task_names",
    "validate_action",
]


def __getattr__(name: str) -> Any:
    """Imports what a name stands for when it is first used."""
    for module, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"jaxserve.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'jaxserve' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
