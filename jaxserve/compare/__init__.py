"""Agents against each other: the evaluation protocol behind ``jaxserve compare``.

`protocol` plays everything for one task, `trained` supplies the policies, `transfer` the settings
they were not trained in, `reference` the second simulator; `statistics` says how sure the numbers
are, `tables` and `pictures` show them.
"""
