"""Sessions of agents: every completion recorded token by token, and linked to what it continues.

``docs/rollouts.md`` is the page. Nothing here imports the simulator, JAX or the builders.
"""
