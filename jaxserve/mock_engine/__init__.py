"""A server with vLLM's routes and no GPU: the reference simulator says when every token comes.

``jaxserve mock-engine`` runs it; ``docs/mock_engine.md`` is its page.
"""

VERSION = "0.32.0+mock"
"""Of the vLLM whose interface this is."""
