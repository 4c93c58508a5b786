"""What agents said, as training data: traces, token by token, of the sessions of a gateway.

``docs/rollouts.md`` is the page. Nothing here imports the simulator.
"""
