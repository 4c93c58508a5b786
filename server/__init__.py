"""jaxserve over HTTP, WebSocket and MCP."""
