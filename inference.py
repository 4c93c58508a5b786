"""A language model plays the three tasks, one line a step.

Takes OPENAI_API_KEY or HF_TOKEN, API_BASE_URL and MODEL_NAME; without a key the heuristic plays.
Ends within 15 minutes: when its time is used up the last knobs are held.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from jaxserve.errors import InputError
from jaxserve.runtime.earlier_variables import EARLIER, without_effect
from jaxserve.runtime.jax_setup import enable_compilation_cache
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import load_task
from server.live_settings import check_simulated
from server.players.language_agent import LanguageAgent
from server.players.model_settings import ModelSettings, has_key
from server.players.playing import InProcess, Turn, play_agent, play_model

TASKS = tuple(load_task(number).name for number in (1, 2, 3))
SEED = 0
WITHOUT_A_KEY = "heuristic"
_LOWEST, _HIGHEST = 0.001, 0.999  # scores are reported strictly inside (0, 1)


def main() -> int:
    """Plays one test episode of each task; returns the exit code, 1 if a model never answered."""
    try:
        check_simulated(os.environ)
        unused = without_effect(os.environ, [EARLIER["JAXSERVE_MODE"]], "on inference.py")
        agent = LanguageAgent(ModelSettings.from_environment()) if has_key() else None
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if unused:
        print(f"warning: {unused}", file=sys.stderr)
    if agent is None:
        print(f"no OPENAI_API_KEY or HF_TOKEN: the {WITHOUT_A_KEY} plays", file=sys.stderr)
    enable_compilation_cache()
    scored = [_play(agent, task) for task in TASKS]
    return 0 if all(scored) else 1


def _play(agent: LanguageAgent | None, task: str) -> bool:
    model = WITHOUT_A_KEY if agent is None else agent.settings.model
    print(f"[START] task={task} env=jaxserve model={model}", flush=True)
    rewards: list[float] = []

    def show(turn: Turn) -> None:
        rewards.append(turn.reward)
        action = ",".join(
            f"{knob}={value:g}" for knob, value in zip(KNOBS, turn.knobs, strict=True)
        )
        error = agent.trace[-1]["error"] if agent is not None and agent.trace else None
        print(
            f"[STEP] step={turn.number} action={action} reward={turn.reward:.2f} "
            f"done={str(turn.done).lower()} error={error or 'null'}",
            flush=True,
        )

    score, success = None, False
    try:
        result = _result(agent, task, show)
        score = result["score"]
        success = score is not None and result.get("failed_decisions", 0) == 0
        if score is None:
            print(f"error: {task} has no score: {result['note']}", file=sys.stderr)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    # The line must have a number, also where there is no score.
    shown = min(max(score or 0.0, _LOWEST), _HIGHEST)
    print(
        f"[END] success={str(success).lower()} steps={len(rewards)} score={shown:.3f} "
        f"rewards={','.join(f'{reward:.2f}' for reward in rewards)}",
        flush=True,
    )
    return score is not None


def _result(agent: LanguageAgent | None, task: str, show: Callable[[Turn], None]) -> dict[str, Any]:
    game = InProcess(task, SEED, "test")
    if agent is not None:
        return play_model(game, agent, task, show)
    return play_agent(game, WITHOUT_A_KEY, show)


if __name__ == "__main__":
    sys.exit(main())
