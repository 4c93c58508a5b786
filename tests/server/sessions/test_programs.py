"""The compiled programs: exactness is what replay rests on."""

from __future__ import annotations

import jax
import numpy as np

from server.sessions import programs
from server.sessions.episodes import parse_episode
from tests.server.actions import random_knobs

HARD = "adversarial_multitenant"


def knobs(seed: int) -> programs.Knobs:
    return random_knobs(np.random.default_rng(seed))


def test_a_session_does_not_notice_its_neighbours() -> None:
    """advance_together: the same bits alone, among few and among many, in any order."""
    episodes = [parse_episode(HARD, seed, "train", None) for seed in range(programs.BATCH_SIZE)]
    simulator = programs.simulator(episodes[0])
    begun = [programs.start(episode)[0] for episode in episodes]
    found = {}
    for count in (1, 20, programs.BATCH_SIZE):
        states: list[programs.State] = list(begun[:count])
        seen = []
        for window in range(12):
            order = list(range(count)) if window % 2 else list(range(count))[::-1]
            lanes, outcome = programs.advance_together(
                simulator, [states[i] for i in order], [knobs(1000 * window + i) for i in order]
            )
            windows = programs.read_windows(outcome)
            for place, i in enumerate(order):
                states[i] = lanes[place]
            seen.append({i: windows.of(place) for place, i in enumerate(order)})
        found[count] = seen
    for few, many in ((1, 20), (20, programs.BATCH_SIZE)):
        for alone, among in zip(found[few], found[many], strict=True):
            assert alone == {i: among[i] for i in range(few)}


def test_one_program_serves_all_tasks() -> None:
    """No pause for compilation when somebody plays another task or changes its config."""
    plain = parse_episode(HARD, 1, "train", None)
    state, _ = programs.start(plain)
    programs.advance(programs.simulator(plain), state, knobs(1))
    compiled = programs._step._cache_size()
    for task, config in (
        ("static_workload", {}),
        ("bursty_workload", {"alpha": 2.0}),
        (HARD, {"rate_scale": 0.5, "horizon": 20}),
        ("azure_code", {}),
        ("static_workload", {"knobs": ["batch_cap"], "objective": {"latency_weight": 1.0}}),
        (HARD, {"deployment": {"num_gpus": 2, "prefix_caching": True, "queue_capacity": 64}}),
        ("azure_code", {"deployment": {"token_budget": 4096, "restart_s": 1.0}}),
    ):
        episode = parse_episode(task, 1, "test", config)
        state, _ = programs.start(episode)
        programs.advance(programs.simulator(episode), state, knobs(2))
    assert programs._step._cache_size() == compiled


def test_windows_are_plain_numbers() -> None:
    """Nothing of JAX or NumPy leaves a program."""
    episode = parse_episode(HARD, 1, "train", None)
    state, begun = programs.start(episode)
    state, outcome = programs.advance(programs.simulator(episode), state, knobs(3))
    for windows in (begun, programs.read_windows(outcome)):
        seen = windows.of(0)
        numbers = [*seen.observation.values(), *seen.parts.values(), seen.reward, seen.failed]
        assert {type(number) for number in numbers} == {float, list}
        assert type(seen.done) is bool
    assert isinstance(jax.tree.leaves(state)[0], jax.Array)
