"""HTTP around the gateway: headers, tokens, JSON bodies, and errors with a status."""
