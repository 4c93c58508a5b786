"""Four dialects of language models, each as pure functions to and from one canonical form.

The canonical form is an OpenAI chat request on the way to an engine (``chat.py``), one algebra of
deltas on the way back (``deltas.py``). ``table.py`` says which dialect a request speaks.
"""
