"""A policy of a task with a fleet as the autoscaler of a running one."""

from __future__ import annotations

import jax
import numpy as np

from jaxserve.agents.policy import Policy
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.fleet import LiveFleet
from jaxserve.live.measured import Streams, measure, observe
from jaxserve.live.readings import EngineState, LiveWindow, parse_engine_state, parse_window
from jaxserve.seeds import episode_key, policy_key
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.types import WindowMetrics

_NO_CONTROLS = {"engines": {}}


class PolicyAutoscaler:
    """One policy, which observes what it observes in episodes; see
    ``jaxserve.live.replicas.scaler.Autoscaler``."""

    def __init__(self, setup: TaskSetup, policy: Policy) -> None:
        """Args: a task that opens the number of replicas alone, and the policy.

        Raises:
          InputError: the task has no fleet, or opens other knobs.
        """
        if setup.env.deployment.fleet is None:
            raise InputError(
                f"--task is {setup.spec.name}, whose replicas serve all the time; name a task with "
                "a fleet"
            )
        if setup.spec.knobs != ("replicas",):
            others = ", ".join(name for name in setup.spec.knobs if name != "replicas")
            raise InputError(
                f"--task is {setup.spec.name}, which opens {others} too, and `scale` turns "
                "replicas alone; `jaxserve operate` turns all of them"
            )
        self._env = env = setup.env
        self.window_s, self.slices = float(env.window_s), int(env.ticks)
        self.most = round(float(env.deployment.num_gpus))
        self._streams = Streams.of(setup.spec)
        self._memory = policy.init(env)
        self._act = jax.jit(lambda memory, seen, key: policy.act(env, memory, seen, key))
        self._key = episode_key(0, "test")
        self._seen = env.reset(self._key)[1].observation
        self._number = 0
        self._before: EngineState | None = None
        # Programs compiled in the first window would miss its end.
        idle = idle_metrics(len(env.slo.ttft_s))
        self._act(self._memory, observe(env, self._seen, idle, None, 1), self._key)

    def wanted(self, state: LiveFleet) -> int:
        """The policy's number of replicas, at least one."""
        self._number += 1
        window = parse_window(state.window)
        metrics = self._measured(state, window)
        self._seen = observe(self._env, self._seen, metrics, window, self._number)
        action, memory = self._act(self._memory, self._seen, policy_key(self._key, self._number))
        floats = [np.asarray(leaf) for leaf in jax.tree.leaves((action, memory))]
        if not all(np.isfinite(x).all() for x in floats if np.issubdtype(x.dtype, np.floating)):
            raise ArithmeticError("the policy's output is not finite")
        self._memory = memory
        # 0 stands for all replicas.
        return int(np.clip(int(action.replicas) or self.most, 1, self.most))

    def _measured(self, state: LiveFleet, window: LiveWindow) -> WindowMetrics:
        """The window in the simulator's terms, with the fleet's replicas."""
        env = self._env
        if not state.serving:
            raise InputError("no engine that serves shows its metrics")
        after = parse_engine_state(state.readable, _NO_CONTROLS)
        before = after if self._before is None else self._before
        self._before = after
        metrics = measure(env, self._streams, window, before, after, env.locked)
        return state.shown_in(env, metrics)
