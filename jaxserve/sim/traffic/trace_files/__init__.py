"""Files of recorded requests: their formats, the rows in them, and parts of them."""
