"""HTTP routes, their OpenAPI schema, and the page."""
