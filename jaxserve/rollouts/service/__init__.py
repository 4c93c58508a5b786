"""The rollout service: tasks come in, agents run, graded results go out.

``docs/rollouts.md`` is the page. State is one SQLite file, so that a killed service goes on where
it was.
"""
