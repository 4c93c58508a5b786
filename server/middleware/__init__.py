"""ASGI middleware: tokens, origins, limits."""
