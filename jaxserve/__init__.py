"""jaxserve: learn to operate an LLM inference server, in pure JAX.

``make`` gives an environment by a task's name; ``make_action`` gives an action.
docs/architecture.md has a map of everything else.
"""

from jaxserve.env import FEATURE_NAMES, EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.registry import make, stack
from jaxserve.runtime.xla_flags import avoid_hanging_reductions
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, OBSERVATION_BOUNDS, make_action, validate_action
from jaxserve.tasks.spec import load_task, task_names
from jaxserve.types import RewardParts, ServeAction, ServeObservation, TimeStep, WindowMetrics

avoid_hanging_reductions()

__version__ = "0.1.0"

__all__ = [
    "ACTION_BOUNDS",
    "FEATURE_NAMES",
    "KNOBS",
    "OBSERVATION_BOUNDS",
    "EnvState",
    "InputError",
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
