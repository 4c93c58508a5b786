"""A language model as the operator, at any OpenAI-compatible endpoint.

Prints the knobs that the model chose at each decision, and the episode's score. Reads
OPENAI_API_KEY (or HF_TOKEN), API_BASE_URL and MODEL_NAME.

    API_BASE_URL=http://localhost:8000/v1 OPENAI_API_KEY=none python examples/llm_agent.py
"""

from __future__ import annotations

import argparse
import sys

from jaxserve.errors import InputError
from jaxserve.spaces import KNOBS
from server.players.language_agent import LanguageAgent
from server.players.model_settings import ModelSettings
from server.players.playing import InProcess, Turn, play_model


def main() -> int:
    """Plays one test episode; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="bursty_workload", help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="test episode, default %(default)s")
    parser.add_argument(
        "--decide-every", type=int, default=20, help="windows a decision holds, default %(default)s"
    )
    arguments = parser.parse_args()
    try:
        settings = ModelSettings.from_environment(decide_every=arguments.decide_every)
        game = InProcess(arguments.task, arguments.seed, "test")
    except InputError as error:
        print(f"llm_agent: {error}", file=sys.stderr)
        return 2
    rewards: list[float] = []

    def show(turn: Turn) -> None:
        rewards.append(turn.reward)
        if (turn.number - 1) % settings.decide_every == 0:
            knobs = ", ".join(f"{k} {v:g}" for k, v in zip(KNOBS, turn.knobs, strict=True))
            print(f"window {turn.number:3}: {knobs}", flush=True)

    agent = LanguageAgent(settings)
    result = play_model(game, agent, arguments.task, show)
    for exchange in agent.trace:
        if exchange["error"]:
            print(f"window {exchange['window']:3}: {exchange['error']}", file=sys.stderr)
    print(
        f"{settings.model}: score {result['score']:.3f}, "
        f"mean reward {sum(rewards) / len(rewards):.3f}, "
        f"{result['exchanges']} exchanges, {result['tokens']} tokens"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
