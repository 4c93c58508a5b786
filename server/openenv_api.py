"""OpenEnv, imported in one place, without its web interface unless that is switched on.

OpenEnv imports gradio whenever it is installed, which costs seconds of start-up and 75 MB.
"""

from __future__ import annotations

import os
import sys
from typing import Any

WEB_INTERFACE = os.environ.get("ENABLE_WEB_INTERFACE", "").lower() in {"true", "1", "yes"}
"""Whether OpenEnv's own web interface is served, as OpenEnv itself decides it."""

_hidden: dict[str, Any] = {} if WEB_INTERFACE or "gradio" in sys.modules else {"gradio": None}
sys.modules.update(_hidden)
try:
    from openenv.core.env_server import Environment, create_app
    from openenv.core.env_server.types import (
        Action,
        ConcurrencyConfig,
        EnvironmentMetadata,
        Observation,
        State,
    )
finally:
    for _name in _hidden:
        del sys.modules[_name]

__all__ = [
    "WEB_INTERFACE",
    "Action",
    "ConcurrencyConfig",
    "Environment",
    "EnvironmentMetadata",
    "Observation",
    "State",
    "create_app",
]
