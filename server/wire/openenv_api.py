"""The import of OpenEnv, without its web interface unless that is switched on.

OpenEnv imports gradio whenever it is installed, which costs seconds of start-up and 75 MB.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

WEB_INTERFACE = os.environ.get("ENABLE_WEB_INTERFACE", "").lower() in {"true", "1", "yes"}
"""Whether OpenEnv serves its own web interface."""

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
    "take_routes",
]


def take_routes(app: FastAPI, paths: Sequence[str]) -> list[Callable[..., Any]]:
    """Removes HTTP routes, which others replace; returns their handlers."""
    routes = app.router.routes
    taken = [route for route in routes if isinstance(route, APIRoute) and route.path in paths]
    app.router.routes[:] = [route for route in routes if route not in taken]
    return [route.endpoint for route in taken]
