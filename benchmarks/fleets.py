"""Fleets of the built-in tasks: static fleets, the best tuned rule and PPO on the same test days.

    python -m benchmarks.fleets --markdown docs/fleet_results.md

Every agent plays the same test episodes. Gains of PPO over the rule are paired by episode. The
saving against static fleets compares the replicas rented at equal attainment, between the two
static fleets around it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.panel import build_agent, playable
from jaxserve.agents.policy import Policy
from jaxserve.agents.rollout import rollout
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.spaces import make_action
from jaxserve.tasks.spec import load_task, task_names

_HEAD = """\
# Fleets

Written by `python -m benchmarks.fleets --markdown docs/fleet_results.md`. Test episodes of the
tasks with a fleet, on days that neither rules nor PPO were tuned on: every agent plays the same
ones. A rule is tuned by the task's own reward on training episodes, its other knobs included; PPO
is trained on them. *Met* is the share of the requests inside both objectives, *replicas* are those
paid for, starting and draining ones included. The clairvoyant knows the rates of the hours to come
and has, in each episode, the best of its plans.
"""


@dataclass(frozen=True)
class Played:
    """An agent on the test episodes."""

    reward: NDArray[np.float64]
    """float64[E], mean reward per window."""
    attainment: float
    """share of the requests inside both objectives."""
    replicas: float
    """replicas paid for, on average."""
    usd_per_hour: float
    changes_per_hour: float
    """changes of the number of replicas that is wanted."""


def play(setup: TaskSetup, policy: Policy, episodes: int) -> Played:
    """Plays test episodes."""
    env, keys = setup.episodes("test", episodes)
    played = rollout(env, policy, keys)
    metrics = played.timesteps.metrics
    good = float(np.asarray(metrics.good, np.float64).sum())
    ended = sum(
        float(np.asarray(each, np.float64).sum())
        for each in (metrics.completed, metrics.rejected, metrics.lost)
    )
    wanted = np.asarray(played.actions.replicas)
    hours = env.window_s / 3600.0
    return Played(
        np.asarray(played.timesteps.reward, np.float64).mean(axis=1),
        good / ended,
        float(np.asarray(metrics.replicas_rented).mean()),
        float(np.asarray(metrics.cost_usd).mean()) / hours,
        float((wanted[:, 1:] != wanted[:, :-1]).mean()) / hours,
    )


def static_replicas(fleets: list[Played], attainment: float) -> float | None:
    """Replicas of a static fleet with this attainment; None beyond the largest one."""
    met = [each.attainment for each in fleets]
    if attainment > met[-1]:
        return None
    return float(np.interp(attainment, met, [each.replicas for each in fleets]))


def task_lines(name: str, episodes: int) -> list[str]:
    """The table of a task and what follows from it."""
    setup = load_setup(name)
    assert setup.anchors is not None
    spec = load_task(name)
    knobs = make_action(**setup.anchors.best_static_action)
    fleets = [
        play(setup, StaticPolicy(knobs.replace(replicas=jnp.int32(count))), episodes)
        for count in range(1, spec.deployment.num_gpus + 1)
    ]
    rows = {f"static, {n}": fleet for n, fleet in enumerate(fleets, 1) if fleet.attainment > 0.8}
    agents = playable(("best_rule", "ppo"), setup)
    rows |= {agent: play(setup, build_agent(agent, setup), episodes) for agent in agents}
    lines = [
        f"## {name}",
        "",
        "| agent | reward | met % | replicas | USD/h | changes/h | saved against static |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    for agent, found in rows.items():
        static = static_replicas(fleets, found.attainment)
        saved = "" if agent.startswith("static") else "beyond all static fleets"
        if not agent.startswith("static") and static is not None:
            saved = f"{1.0 - found.replicas / static:.0%} of {static:.1f}"
        lines.append(
            f"| {agent} | {found.reward.mean():.4f} | {100 * found.attainment:.1f} "
            f"| {found.replicas:.2f} | {found.usd_per_hour:.2f} "
            f"| {found.changes_per_hour:.1f} | {saved} |"
        )
    lines += ["", f"{episodes} episodes of {spec.horizon * spec.window_s / 3600:g} hours."]
    anchors = setup.anchors
    if anchors.best_rule is not None:
        room = anchors.oracle - anchors.best_rule
        cost = spec.objective.cost_weight * rows["best_rule"].replicas / spec.deployment.num_gpus
        lines.append(
            f"Headroom between the rule and the clairvoyant: {room:.4f} of reward, which is "
            f"{room / cost:.0%} of what the rule's fleet costs."
        )
    if "ppo" in rows:
        gain = rows["ppo"].reward - rows["best_rule"].reward
        half = t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / len(gain) ** 0.5
        lines.append(
            f"PPO over the rule, paired: {gain.mean():+.4f} "
            f"({gain.mean() - half:+.4f} to {gain.mean() + half:+.4f})."
        )
    return [*lines, ""]


def main() -> None:
    """Plays all tasks with a fleet and prints or writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    fleets = [name for name in task_names() if load_task(name).deployment.fleet is not None]
    lines = [line for name in fleets for line in task_lines(name, arguments.episodes)]
    text = "\n".join([_HEAD, *lines]).rstrip() + "\n"
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(text)


if __name__ == "__main__":
    main()
