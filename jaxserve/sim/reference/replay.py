"""A list of requests on one engine: the reference simulator without deployment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import IterationTimer
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request, request_log
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings


def run_requests(
    requests: Sequence[Request],
    timer: IterationTimer,
    knobs: GpuKnobs,
    settings: SchedulerSettings | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Serves ``requests`` to the end on one engine without router, queue limit or front end.

    Args:
      requests: their arrivals in seconds, lengths in tokens.
      timer: seconds of an iteration.
      knobs: knobs of the engine, held to the end.
      settings: limits of the scheduler; default is ``SchedulerSettings()``.
      seed: of the draft tokens that are accepted.

    Returns:
      ``LOG_DTYPE`` rows in the order of ``requests``, whose own fields are filled in as well.

    Raises:
      InputError: two requests have the same id.
    """
    if len({request.id for request in requests}) < len(requests):
        raise InputError("requests have ids in common; ids must be unique")
    rng = np.random.default_rng(seed)
    engine = Engine(timer, knobs, settings or SchedulerSettings(), rng)
    arrivals = sorted(requests, key=lambda request: (request.arrival_s, request.id))
    now, upcoming = 0.0, 0
    while True:
        while upcoming < len(arrivals) and arrivals[upcoming].arrival_s <= now:
            engine.waiting.push(arrivals[upcoming])
            upcoming += 1
        end_s = engine.start(now)
        if end_s is not None:
            engine.finish(end_s)
            now = end_s
        elif upcoming < len(arrivals):
            now = arrivals[upcoming].arrival_s
        else:
            return request_log(requests)
