"""The reference engine against vLLM's own scheduler, step by step.

vLLM's scheduler plays the episodes in its own environment, without a model, a worker or a server.
Digests of its steps are kept, so that the comparison needs no vLLM. This command records the steps
anew and prints the first different step of each episode:

    python -m jaxserve.studies.fidelity.vllm_scheduler PYTHON_OF_THE_ENVIRONMENT
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jaxserve.datafiles import data_dir, load_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.scheduler_episodes import (
    ScheduledStep,
    SchedulerEpisode,
    our_steps,
    random_episode,
)

RECORD = "vllm_scheduler.json"
"""Data file of digests."""
GROUPS: dict[str, tuple[int, dict[str, bool]]] = {
    "knobs turned": (1000, {}),
    "prefix caching": (500, {"prefix_caching": True}),
    "speculation": (500, {"speculates": True}),
}
"""Number of episodes and arguments of ``random_episode``, by group."""
BAR = 0.1
"""Largest percentage of episodes with a different step."""


def digest(value: Any) -> str:
    """Digest of a JSON value, twelve hexadecimal digits."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def vllm_steps(
    python: Path, episodes: Sequence[SchedulerEpisode]
) -> tuple[str, list[list[ScheduledStep]]]:
    """Plays ``episodes`` on vLLM's scheduler.

    Args:
      python: interpreter of an environment with vLLM and jaxserve-vllm.
      episodes: episodes to play.

    Returns:
      the version of vLLM, and the steps of each episode.

    Raises:
      InputError: the interpreter cannot play them.
    """
    command = [python, "-m", "jaxserve_vllm.episodes"]
    lines = "".join(json.dumps(asdict(episode)) + "\n" for episode in episodes)
    try:
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"{python} cannot be run: {error.strerror}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{python} does not play episodes on vLLM's scheduler: {reason}")
    version, *steps = map(json.loads, done.stdout.splitlines())
    return version["vllm"], steps


def first_difference(ours: Sequence[ScheduledStep], theirs: Sequence[ScheduledStep]) -> str | None:
    """Sentence about the first different step; None if all steps are equal."""
    for i in range(max(len(ours), len(theirs))):
        pair = [json.dumps(steps[i]) if i < len(steps) else "none" for steps in (ours, theirs)]
        if pair[0] != pair[1]:
            return f"step {i}: ours {pair[0]}, vLLM's {pair[1]}"
    return None


def scheduler_agreement() -> list[FidelityRow]:
    """A row for each group of recorded episodes.

    Raises:
      InputError: the record belongs to other episodes.
    """
    record = load_json(RECORD)
    rows = []
    for group, (count, options) in GROUPS.items():
        found = record[group]
        differing = sum(
            not agrees(seed, options, *digests) for seed, digests in enumerate(found["episodes"])
        )
        detail = (
            f"{differing} of {count} random episodes differ from vLLM {record['vllm']}; "
            f"{found['tokens']} tokens in {found['steps']} steps, with {found['preemptions']} "
            f"preemptions and {found['turns']} turns of knobs"
        )
        check = f"reference vs vLLM's scheduler: {group}"
        rows.append(
            FidelityRow.within(check, 100 * differing / count, BAR, "% of episodes", detail)
        )
    return rows


def agrees(seed: int, options: dict[str, bool], episode_digest: str, steps_digest: str) -> bool:
    """Whether the reference engine schedules an episode as vLLM's scheduler did.

    Raises:
      InputError: the record belongs to another episode.
    """
    episode = random_episode(seed, **options)
    if digest(asdict(episode)) != episode_digest:
        raise InputError(
            f"{RECORD} is of other episodes; "
            "python -m jaxserve.studies.fidelity.vllm_scheduler makes it"
        )
    return digest(our_steps(episode)) == steps_digest


def record(python: Path) -> None:
    """Plays every group on vLLM's scheduler, prints differences, and writes the data file."""
    found: dict[str, Any] = {}
    for group, (count, options) in GROUPS.items():
        episodes = [random_episode(seed, **options) for seed in range(count)]
        found["vllm"], played = vllm_steps(python, episodes)
        for seed, (episode, theirs) in enumerate(zip(episodes, played, strict=True)):
            if difference := first_difference(our_steps(episode), theirs):
                print(f"{group}, episode {seed}, {difference}")
        both = list(zip(episodes, played, strict=True))
        found[group] = {
            "steps": sum(map(len, played)),
            "tokens": sum(part[1] for steps in played for batch, _ in steps for part in batch),
            "preemptions": sum(len(out) for steps in played for _, out in steps),
            "turns": sum(at < len(steps) for episode, steps in both for at, _ in episode.turns),
            "episodes": [[digest(asdict(episode)), digest(steps)] for episode, steps in both],
        }
    write_atomic(data_dir() / RECORD, (json.dumps(found, indent=0) + "\n").encode())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        record(Path(sys.argv[1]))
        for row in scheduler_agreement():
            print(row)
    except InputError as problem:
        sys.exit(f"jaxserve: {problem}")
