"""Real engines: calibrated, recorded, observed and operated."""
