"""Applications of the gateway: for clients and for controllers, and the process around them."""
