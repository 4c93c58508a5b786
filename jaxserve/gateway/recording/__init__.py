"""Recording of agents' sessions: every completion token by token, linked to the one it continues.

``docs/rollouts.md`` is the page. Nothing here imports the simulator, JAX or the builders.
"""
