"""A gateway in front of inference engines: routing, admission, streaming and measurement.

``jaxserve gateway`` runs it; ``docs/gateway.md`` is its page. Nothing here imports the simulator.
"""
