"""What the generated parts of the documentation are made from: one module per kind of page."""
