"""A server that plays on a real engine; imported only where ``JAXSERVE_MODE`` says so."""
