"""Agents against each other: the evaluation protocol of ``jaxserve compare``.

``protocol`` plays a task in both simulators, with policies from ``trained`` and setups from
``variants``. ``intervals`` estimates the numbers; ``result_tables`` and ``pictures`` show them.
"""
