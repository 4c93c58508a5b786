"""jaxserve over HTTP, WebSocket and MCP.

``routes`` and ``protocols`` take requests, whose formats are in ``wire``. A ``service`` answers
them from the ``sessions``. ``players`` are agents that play sessions here.
"""
