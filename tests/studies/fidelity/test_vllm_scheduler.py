"""The reference engine against what vLLM's scheduler was recorded to do."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from jaxserve.datafiles import load_json
from jaxserve.errors import InputError
from jaxserve.sim.reference.engine import Engine
from jaxserve.studies.fidelity import vllm_scheduler
from jaxserve.studies.fidelity.scheduler_episodes import our_steps, random_episode

SOME = 40
"""Episodes of each group that the default tests play; ``jaxserve fidelity`` plays all."""


@pytest.mark.parametrize("group", list(vllm_scheduler.GROUPS))
def test_the_same_requests_with_the_same_tokens_in_every_step(group: str) -> None:
    """As recorded of vLLM, with the group's options."""
    _, options = vllm_scheduler.GROUPS[group]
    episodes = load_json(vllm_scheduler.RECORD)[group]["episodes"]
    for seed, digests in enumerate(episodes[:SOME]):
        assert vllm_scheduler.agrees(seed, options, *digests), f"episode {seed}"


def test_a_thousand_episodes_are_recorded() -> None:
    """The record has as many episodes as the rows say, and they are under pressure."""
    record = load_json(vllm_scheduler.RECORD)
    for group, (count, _) in vllm_scheduler.GROUPS.items():
        assert len(record[group]["episodes"]) == count
        assert record[group]["preemptions"] > count
    assert max(count for count, _ in vllm_scheduler.GROUPS.values()) >= 1000


def test_another_schedule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that preempts the wrong sequence does not agree."""
    monkeypatch.setattr(Engine, "_victim", lambda self: self.decoding.sequences[0])
    episodes = load_json(vllm_scheduler.RECORD)["knobs turned"]["episodes"]
    agreeing = [vllm_scheduler.agrees(seed, {}, *row) for seed, row in enumerate(episodes[:20])]
    assert not all(agreeing)


def test_a_record_of_other_episodes_is_refused() -> None:
    """Rather than taken for a difference."""
    with pytest.raises(InputError, match="other episodes"):
        vllm_scheduler.agrees(0, {}, "0" * 12, "0" * 12)


def test_the_first_difference_is_shown() -> None:
    """With both sides, also where one ends early."""
    steps = our_steps(random_episode(0))
    assert vllm_scheduler.first_difference(steps, [list(step) for step in steps]) is None
    assert vllm_scheduler.first_difference(steps, steps[:2]) == (
        f"step 2: ours {[list(part) for part in steps[2]]}, vLLM's none"
    )


def test_digests_change_with_their_values() -> None:
    """Episodes that differ in one number have different digests."""
    episode = random_episode(0)
    other = replace(episode, blocks=episode.blocks + 1)
    assert vllm_scheduler.digest(asdict(episode)) != vllm_scheduler.digest(asdict(other))


def test_an_interpreter_without_vllm_is_named(tmp_path: Path) -> None:
    """One sentence, whether it cannot be run or has no plug-in."""
    with pytest.raises(InputError, match="cannot be run"):
        vllm_scheduler.vllm_steps(tmp_path / "python", [])
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'No module named vllm' >&2; exit 1\n")
    script.chmod(0o755)
    with pytest.raises(InputError, match="No module named vllm"):
        vllm_scheduler.vllm_steps(script, [])
