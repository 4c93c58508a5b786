"""The rollout service: runs agents on submitted tasks, and serves graded results.

See ``docs/rollout_service.md``. All state is in one SQLite file, from which a restarted service
continues.
"""
