"""The benchmark of the builders measures what it says."""

from __future__ import annotations

from benchmarks.rollout_builders import measured, session


def test_every_step_is_timed() -> None:
    """It checks itself that all tokens are trainable and each conversation is one trace."""
    seconds = measured(12, 30, 3)
    assert len(seconds) == 8 and all(value > 0 for value in seconds.values())
    prompts = [record.prompt_ids for record in session(12, 30, 3)]
    assert [len(prompt) for prompt in prompts if prompt is not None][::3] == [30, 150, 270, 390]
