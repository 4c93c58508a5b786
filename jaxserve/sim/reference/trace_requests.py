"""A recorded trace as requests of the reference simulator, its shared prefixes included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jaxserve.sim.reference.request import Request
from jaxserve.sim.traffic.trace_classes import ONE_CLASS, ClassMap
from jaxserve.sim.traffic.traces import Trace


def trace_requests(
    trace: Trace,
    classes: ClassMap = ONE_CLASS,
    *,
    start_s: float = 0.0,
    end_s: float = np.inf,
    priority: Sequence[int] | None = None,
    acceptance: Sequence[np.ndarray] | None = None,
) -> list[Request]:
    """The requests of a trace in order of arrival, with ids from 0.

    Generated tokens have no name in a trace, so no other request finds them in a cache; where a
    later prompt repeats them, the trace names them there.

    Args:
      classes: of the requests, see ``jaxserve.sim.traffic.trace_classes.class_map``.
      start_s, end_s: which of them, by arrival; the simulator's time begins at ``start_s``.
      priority: of each class, 0 without.
      acceptance: of each class, see ``Request``.
    """
    group = classes.of(trace)
    chosen = np.flatnonzero((trace.arrival_s >= start_s) & (trace.arrival_s < end_s))
    requests = []
    for number, index in enumerate(chosen.tolist()):
        of = int(group[index])
        request = Request(
            id=number,
            arrival_s=float(trace.arrival_s[index]) - start_s,
            prompt_tokens=int(trace.prompt_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            traffic_class=of,
            priority=0 if priority is None else int(priority[of]),
            acceptance=None if acceptance is None else acceptance[of],
        )
        if trace.blocks is not None:
            request.prefix_ids = trace.blocks.of(index)
            request.prefix_tokens = trace.blocks.tokens
        requests.append(request)
    return requests
