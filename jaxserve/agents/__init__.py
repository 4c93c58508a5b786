"""Whatever plays: policies, their rollouts, the searches and planners behind some of them."""
