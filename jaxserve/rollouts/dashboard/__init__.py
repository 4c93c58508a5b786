"""Pages that show what a rollout service does. They change nothing, and neither can they."""
