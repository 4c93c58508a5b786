"""How far knobs and lengths go, apart from the pytrees: files and engines are read without JAX."""

LARGEST_BATCH = 512
"""Largest batch cap: sequences per GPU that may run at once."""
MAX_DEPTH = 8
"""Deepest speculation: draft tokens in a verify step, at most."""
LONGEST_TOKENS = 131_072
"""Longest context, prompt and output together, whose times latency tables know."""
TOKEN_BUDGETS = (64, 65_536)
"""Least and most tokens that one engine iteration may process."""
