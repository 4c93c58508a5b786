"""The environment as gymnasium and gymnax have environments."""
