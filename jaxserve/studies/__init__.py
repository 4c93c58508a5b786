"""Studies: agents against each other, the simulators against measurements, agents on real engines.

Each package has a command: ``jaxserve compare``, ``jaxserve fidelity``, ``jaxserve live-study``.
"""
