"""OpenEnv's WebSocket protocol, and MCP."""
