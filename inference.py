"""A language model plays the three tasks, one line a step.

Needs OPENAI_API_KEY or HF_TOKEN; takes API_BASE_URL and MODEL_NAME. Ends within 15 minutes: when
its time is used up the last knobs are held.
"""

from __future__ import annotations

import sys

from jaxserve.errors import InputError
from jaxserve.runtime.compilation_cache import enable_compilation_cache
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import load_task
from server.players.language_agent import LanguageAgent, ModelSettings
from server.players.playing import InProcess, Turn, play_model

TASKS = tuple(load_task(number).name for number in (1, 2, 3))
SEED = 0
_LOWEST, _HIGHEST = 0.001, 0.999  # scores are reported strictly inside (0, 1)


def main() -> int:
    """Plays one test episode of each task; returns the exit code."""
    try:
        agent = LanguageAgent(ModelSettings.from_environment())
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    enable_compilation_cache()
    for task in TASKS:
        _play(agent, task)
    return 0


def _play(agent: LanguageAgent, task: str) -> None:
    print(f"[START] task={task} env=jaxserve model={agent.settings.model}", flush=True)
    rewards: list[float] = []

    def show(turn: Turn) -> None:
        rewards.append(turn.reward)
        action = ",".join(
            f"{knob}={value:g}" for knob, value in zip(KNOBS, turn.knobs, strict=True)
        )
        error = agent.trace[-1]["error"] if agent.trace else None
        print(
            f"[STEP] step={turn.number} action={action} reward={turn.reward:.2f} "
            f"done={str(turn.done).lower()} error={error or 'null'}",
            flush=True,
        )

    score, success = _LOWEST, False
    try:
        result = play_model(InProcess(task, SEED, "test"), agent, task, show)
        score = min(max(result["score"], _LOWEST), _HIGHEST)
        success = result["failed_exchanges"] == 0
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    print(
        f"[END] success={str(success).lower()} steps={len(rewards)} score={score:.3f} "
        f"rewards={','.join(f'{reward:.2f}' for reward in rewards)}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
