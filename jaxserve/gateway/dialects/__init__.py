"""Dialects: the APIs of OpenAI, Anthropic and Google, a module or package each.

``dialect.py`` defines a dialect, ``routes.py`` finds the dialect of a path. Requests are translated
to one canonical form, an OpenAI chat request (``canonical.py``), and answers come back as deltas
(``deltas.py``). All functions are pure.
"""
