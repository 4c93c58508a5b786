"""Live play on a real engine; imported only if ``JAXSERVE_MODE`` is live."""
