"""Read-only pages of a rollout service."""
