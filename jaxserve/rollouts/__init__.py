"""Agents run on tasks, their requests as graded token traces, and forms that trainers take.

See ``docs/rollouts.md``. No module here imports the simulator.
"""
