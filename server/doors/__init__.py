"""Every way in: HTTP routes, WebSocket, MCP, the page; and who may pass how often."""
