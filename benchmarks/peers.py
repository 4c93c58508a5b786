"""``python -m benchmarks.peers``: PPO of Stable-Baselines3 on the gymnasium adapter, and ours.

The benchmark needs the extra ``peers``. Both learners learn the same task in this process, one
after the other, with the same windows, environments, rollouts, epochs, minibatches, layers and
hyper-parameters; then both policies play the same test episodes. The learners differ: jaxserve's
runs in one compiled program, normalises its observations and sees running means of them; the peer
steps all environments in one compiled call and learns in PyTorch. The third row of the table is the
peer's speed in its usual form, with a few environments called one after the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

try:
    import stable_baselines3
    import torch
    from gymnasium.vector import AutoresetMode
    from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
except ModuleNotFoundError as error:
    print(
        f"benchmarks: this needs {error.name}, which the peers extra installs: "
        "pip install 'jaxserve[peers]'",
        file=sys.stderr,
    )
    raise SystemExit(2) from None

from benchmarks.page import publish
from jaxserve import checks
from jaxserve.adapters.gymnasium_env import ServeGymEnv, ServeVectorEnv
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.errors import InputError
from jaxserve.evaluation.episode_statistics import interval
from jaxserve.evaluation.held_out import check_episodes, evaluate
from jaxserve.learning.ppo import Learner
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.studies.compare.trained import LEARNING_RATE
from jaxserve.tasks.anchors import anchors_score

IN_TURN = 8
"""Environments of the third row."""


@dataclass(frozen=True)
class Learnt:
    """A learner after its budget."""

    name: str
    compile_s: float
    learn_s: float
    windows: int
    scores: NDArray[np.float64] | None = None
    """[episodes]; None where only the speed was measured."""

    @property
    def windows_per_s(self) -> float:
        """Compilation left out."""
        return self.windows / self.learn_s

    def row(self) -> str:
        """Markdown."""
        score = "not measured"
        if self.scores is not None:
            found = interval(self.scores)
            score = f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"
        return (
            f"| {self.name} | {self.windows:,} | {self.windows_per_s:,.0f} | {self.learn_s:.1f} "
            f"| {self.compile_s:.1f} | {score} |"
        )


class StackedEnvironments(VecEnv):
    """A ``ServeVectorEnv`` in the interface of Stable-Baselines3, which knows only its own."""

    def __init__(self, envs: ServeVectorEnv, seed: int) -> None:
        self.envs, self.first_seed = envs, seed
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> NDArray[np.float32]:
        """Starts all episodes."""
        return self.envs.reset(seed=self.first_seed)[0]

    def step_async(self, actions: np.ndarray) -> None:
        """Remembers the actions."""
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """One window of all; ended episodes have begun anew and left their last observation."""
        seen, rewards, terminated, truncated, info = self.envs.step(self._actions)
        ended = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in np.flatnonzero(ended):
            infos[index] = {
                "terminal_observation": info["final_obs"][index],
                "TimeLimit.truncated": bool(truncated[index]),
            }
        return seen, rewards, ended, infos

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The vector's attribute, once for each environment."""
        return [getattr(self.envs, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Sets the vector's attribute."""
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **rest: Any) -> Any:
        """Calls the vector's method; its result, once for each environment."""
        return [getattr(self.envs, method_name)(*args, **rest)] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No environment is wrapped."""
        return [False] * self.num_envs


def ours(setup: TaskSetup, config: PPOConfig, seed: int, episodes: int) -> Learnt:
    """jaxserve's learner."""
    learner = Learner.create(setup.env, config)
    start = time.perf_counter()
    state = jax.jit(learner.init)(jax.random.key(seed))
    update = jax.jit(learner.update).lower(state).compile()
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(config.updates):
        state, _ = update(state)
    jax.block_until_ready(state)
    learn_s = time.perf_counter() - start
    scores = evaluate(setup, learner.policy(state), episodes, "test").scores
    return Learnt("jaxserve PPO", compile_s, learn_s, config.updates * config.windows, scores)


def theirs(setup: TaskSetup, config: PPOConfig, seed: int, episodes: int) -> Learnt:
    """Stable-Baselines3's, with the same settings as far as it has them."""
    same_step = AutoresetMode.SAME_STEP
    envs = ServeVectorEnv(config.environments, setup.spec, autoreset_mode=same_step)
    start = time.perf_counter()
    envs.reset(seed=seed)
    envs.step(np.zeros(envs.action_space.shape or (), np.int64))
    compile_s = time.perf_counter() - start
    model = _peer(StackedEnvironments(envs, seed), config, seed)
    start = time.perf_counter()
    model.learn(config.updates * config.windows)
    learn_s = time.perf_counter() - start
    scores = peer_scores(setup, model, episodes)
    return Learnt(
        "Stable-Baselines3 PPO", compile_s, learn_s, config.updates * config.windows, scores
    )


def theirs_in_turn(setup: TaskSetup, seed: int) -> Learnt:
    """Speed of the same learner with ``IN_TURN`` environments of its own vector."""
    config = PPOConfig(environments=IN_TURN, rollout_windows=200, updates=2)
    start = time.perf_counter()
    envs = DummyVecEnv([lambda: ServeGymEnv(setup.spec)] * IN_TURN)
    envs.seed(seed)
    envs.reset()
    envs.step(np.zeros((IN_TURN, *(envs.action_space.shape or ())), np.int64))
    compile_s = time.perf_counter() - start
    model = _peer(envs, config, seed)
    start = time.perf_counter()
    model.learn(config.updates * config.windows)
    learn_s = time.perf_counter() - start
    name = f"Stable-Baselines3 PPO, {IN_TURN} environments in turn"
    return Learnt(name, compile_s, learn_s, config.updates * config.windows)


def _peer(envs: VecEnv, config: PPOConfig, seed: int) -> stable_baselines3.PPO:
    end = config.learning_rate_end
    return stable_baselines3.PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: config.learning_rate * (end + (1.0 - end) * left),
        n_steps=config.rollout_windows,
        batch_size=config.windows // config.minibatches,
        n_epochs=config.epochs,
        gamma=config.discount,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip,
        ent_coef=config.entropy_weight,
        vf_coef=config.value_weight,
        max_grad_norm=config.max_gradient,
        policy_kwargs={"net_arch": [config.width, config.width]},
        seed=seed,
        device="cpu",
    )


def peer_scores(setup: TaskSetup, model: Any, episodes: int) -> NDArray[np.float64]:
    """Scores of its greedy policy on the first test episodes, those ``evaluate`` plays."""
    envs = ServeVectorEnv(episodes, setup.spec, "test")
    observations, _ = envs.reset(seed=0)
    horizon = int(setup.env.horizon)
    total = np.zeros(episodes)
    for _ in range(horizon):
        actions, _ = model.predict(observations, deterministic=True)
        observations, rewards, _, _, _ = envs.step(actions)
        total += rewards
    anchors = setup.anchors
    assert anchors is not None
    return np.array([anchors_score(anchors, float(mean)) for mean in total / horizon])


def compare_learners(
    task: str, windows: int, environments: int, episodes: int, seed: int = 0
) -> list[Learnt]:
    """Both learners after the same budget, rounded up to whole updates; and the peer in turn.

    Raises:
      InputError: a task that is unknown or has no anchors, or sizes that do not fit.
    """
    check_episodes(episodes)
    checks.whole("windows", windows, 1)
    checks.whole("environments", environments, 1)
    setup = load_setup(task)
    if setup.anchors is None:
        raise InputError(f"task {task!r} has no anchors, so that nothing can be scored")
    config = PPOConfig(learning_rate=LEARNING_RATE, environments=environments)
    config = dataclasses.replace(config, updates=-(-windows // config.windows))
    return [
        ours(setup, config, seed, episodes),
        theirs(setup, config, seed, episodes),
        theirs_in_turn(setup, seed),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints one table and the ratio; exit code 2 after bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", default="bursty_workload", help="default %(default)s")
    parser.add_argument(
        "--windows", type=int, default=1_000_000, help="each learner plays (default %(default)s)"
    )
    parser.add_argument(
        "--environments", type=int, default=256, help="side by side in each (default %(default)s)"
    )
    parser.add_argument(
        "--episodes",
        type=int,
        default=64,
        help="test episodes of each (default %(default)s)",
    )
    parser.add_argument(
        "--torch-threads", type=int, default=1, help="threads PyTorch may use (default %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="file to write the table to")
    chosen = parser.parse_args(arguments)

    def measure() -> str:
        checks.whole("--torch-threads", chosen.torch_threads, 1)
        torch.set_num_threads(chosen.torch_threads)
        task, environments, episodes = chosen.task, chosen.environments, chosen.episodes
        found = compare_learners(task, chosen.windows, environments, episodes)
        return report(task, chosen.windows, environments, episodes, found)

    return publish(measure, chosen.markdown)


def report(
    task: str, windows: int, environments: int, episodes: int, found: Sequence[Learnt]
) -> str:
    """Markdown: a row for each learner, and how they compare."""
    first, *others = found
    ratios = " and ".join(f"{first.windows_per_s / other.windows_per_s:.1f}" for other in others)
    lines = [
        "# Benchmark against another learner",
        "",
        f"Printed by `python -m benchmarks.peers --windows {windows}`.",
        "",
        f"Task `{task}`, {environments:,} environments, {episodes:,} test episodes; "
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}, torch {torch.__version__} with "
        f"{torch.get_num_threads()} thread(s), "
        f"stable-baselines3 {stable_baselines3.__version__}. XLA may use all cores; the peer "
        "sees the latest observation as it is, without running means; one training seed each.",
        "",
        "| learner | windows | windows/s | learning, s | compiling, s | score (95 % interval) |",
        "|---|--:|--:|--:|--:|--:|",
        *(learnt.row() for learnt in found),
        "",
        f"{first.name} plays and learns {ratios} times as many windows a second.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
