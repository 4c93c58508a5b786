"""Tasks: specifications, overrides of them, reward, anchors, replay of recorded traffic."""
