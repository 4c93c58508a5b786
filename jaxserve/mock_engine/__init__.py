"""A server with vLLM's routes and no GPU: the reference simulator times every token.

``jaxserve mock-engine`` runs it; ``docs/mock_engine.md`` is its page.
"""

VERSION = "0.32.0+mock"
"""Version of the vLLM whose interface the mock engine has."""
