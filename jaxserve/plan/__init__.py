"""Plans: from a model, traffic and objectives to a deployment that can be started."""
