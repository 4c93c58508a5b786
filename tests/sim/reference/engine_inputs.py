"""Requests and engines that several tests play."""

import numpy as np
from hypothesis import strategies as st

from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import SchedulerSettings
from tests.sim.reference.simulator_inputs import LinearTimer


def burst(count, prompt=100, output=20, gap_s=0.0, **fields):
    """Equal requests, ``gap_s`` apart."""
    return [Request(i, i * gap_s, prompt, output, **fields) for i in range(count)]


REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 150), st.integers(1, 40), st.integers(0, 2)),
    min_size=1,
    max_size=14,
)


def make(rows):
    """Requests of ``REQUESTS``, by arrival."""
    return [
        Request(i, start * 0.01, prompt, output, priority=priority)
        for i, (start, prompt, output, priority) in enumerate(sorted(rows))
    ]


def served(engine, steps, arrivals=()):
    """{request: tokens} of each of the next steps; ``arrivals`` come after the first."""
    seen = []
    for _ in range(steps):
        assert engine.start(0.0) is not None
        seen.append({request.id: tokens for request, tokens in engine.batch})
        engine.finish(0.0)
        for request in arrivals:
            engine.waiting.push(request)
        arrivals = ()
    return seen


def make_engine(requests, knobs, **settings_):
    """An engine before which ``requests`` wait."""
    engine = Engine(LinearTimer(), knobs, SchedulerSettings(**settings_), np.random.default_rng(0))
    for request in requests:
        engine.waiting.push(request)
    return engine
