"""How good agents are on held-out episodes, and what adapting can gain on a task."""
