"""Sphinx: ``python -m sphinx -W docs build/docs`` builds the site, without the network."""

project = "jaxserve"
author = "The jaxserve authors"
project_copyright = "The jaxserve authors"

extensions = ["myst_parser"]
# Headings get the anchors that GitHub gives them, so that links work in both places.
myst_heading_anchors = 3

html_theme = "furo"
html_title = "jaxserve"
html_copy_source = False
html_show_sphinx = False
# References to what is not there are warnings, and -W makes those errors.
nitpicky = True
