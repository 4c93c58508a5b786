"""Traffic: requests drawn from classes and regimes, or taken from recorded traces."""
