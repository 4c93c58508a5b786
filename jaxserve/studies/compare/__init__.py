"""Agents against each other: the evaluation protocol behind ``jaxserve compare``.

``protocol`` plays everything for one task, in both simulators. ``trained`` supplies the policies,
``variants`` the setups that they were not trained in. ``intervals`` says how
sure the numbers are, ``result_tables`` and ``pictures`` show them.
"""
