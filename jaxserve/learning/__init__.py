"""PPO, and the training runs around it, on one device or many."""
