"""Sources of the generated parts of the documentation: one module per kind of page."""
