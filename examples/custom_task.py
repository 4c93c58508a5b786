"""A task of your own: custom_task.json, played by three agents.

Prints the mean reward, SLO attainment and median TTFT of each agent on the same held-out episodes.

    python examples/custom_task.py --episodes 8
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxserve.agents.task_setup import load_setup
from jaxserve.evaluation.held_out import evaluate_all

TASK = Path(__file__).with_name("custom_task.json")


def main() -> None:
    """Loads the task file and compares agents on it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default=str(TASK), help="path of a task file")
    parser.add_argument("--episodes", type=int, default=4, help="default %(default)s")
    arguments = parser.parse_args()

    setup = load_setup(arguments.task)
    print(f"{setup.spec.title}: {setup.spec.description}")
    evaluated = evaluate_all(setup, ["random", "default", "batch_512"], arguments.episodes)
    for agent, evaluation in evaluated.agents.items():
        found = evaluation.summary()
        print(
            f"{agent:10} reward {found['objective'].mean:6.3f}  "
            f"SLO met {found['slo_attainment'].mean:6.1%}  "
            f"TTFT p50 {found['ttft_p50_s'].mean:6.3f} s"
        )


if __name__ == "__main__":
    main()
