"""jaxserve over HTTP, WebSocket and MCP.

A request comes in by one of the ``doors``, in the formats of ``wire``. ``service`` answers it from
the ``sessions``. ``players`` are agents that play a session here.
"""
