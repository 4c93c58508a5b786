"""Real engines: what they offer, observing and operating them."""
