"""The work of a node: sessions brought from REGISTERED to their end."""
