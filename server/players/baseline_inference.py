"""Scores of a baseline on every task, written to a file.

    python -m server.players.baseline_inference --mode deterministic --output scores.json
    python -m server.players.baseline_inference --mode openai --output scores.json
    python -m server.players.baseline_inference --runtime http --base-url http://localhost:7860

The mode openai needs OPENAI_API_KEY (or HF_TOKEN), and takes API_BASE_URL and MODEL_NAME.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from jaxserve.errors import InputError
from jaxserve.runtime.earlier_variables import BASE_URL, EARLIER, without_effect
from jaxserve.runtime.jax_setup import enable_compilation_cache
from jaxserve.seeds import SPLITS
from jaxserve.show.outputs import check_output, write_output
from jaxserve.tasks.spec import task_names
from server.live_settings import check_simulated, plays_live
from server.players.agents import check_agent
from server.players.baseline_scores import SPLIT, score_tasks, summary
from server.players.language_agent import LanguageAgent
from server.players.model_settings import ModelSettings
from server.players.playing import Game, InProcess, OverHttp, play_agent, play_model


def main(arguments: list[str] | None = None) -> int:
    """Plays one episode of each task; returns the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.runtime == "in-process":
            check_simulated(os.environ)
        else:
            # The server decides how it plays; only the variables' values are checked.
            plays_live(os.environ)
        unused = without_effect(os.environ, _read(chosen), f"with --runtime {chosen.runtime}")
        if unused:
            print(f"warning: {unused}", file=sys.stderr)
        if chosen.output is not None:
            _make_folder(chosen.output.parent)
        check_output(chosen.output, "--output")
        report = _play(chosen)
        text = json.dumps(report, indent=1, allow_nan=False) + "\n"
        if chosen.output is not None:
            write_output(chosen.output, text.encode(), "--output")
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for task, result in report["baseline"].items():
        score = "   -" if result["score"] is None else f"{result['score']:.3f}"
        print(f"{score}  {task}: {result.get('feedback') or result['note']}")
    unscored = [task for task, result in report["baseline"].items() if result["score"] is None]
    if unscored:
        print(f"error: no score for {', '.join(unscored)}", file=sys.stderr)
    # One of jaxserve's agents may lack a setting for some tasks; a model lacks none.
    failed = unscored if chosen.mode == "openai" else len(unscored) == len(report["baseline"])
    return int(bool(failed))


def _read(chosen: argparse.Namespace) -> list[str]:
    """Variables of earlier projects that this run reads."""
    return [BASE_URL] if chosen.runtime == "http" else [EARLIER["JAXSERVE_MODE"]]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output needs the folder {folder}: {error.strerror}") from None


def _play(chosen: argparse.Namespace) -> dict[str, Any]:
    enable_compilation_cache()
    tasks = chosen.task or list(task_names())

    def game(task: str) -> Game:
        if chosen.runtime == "http":
            token = os.environ.get("JAXSERVE_TOKEN")
            return OverHttp(chosen.base_url, task, chosen.seed, chosen.split, token)
        return InProcess(task, chosen.seed, chosen.split)

    about = {"mode": chosen.mode, "runtime": chosen.runtime}
    if chosen.mode == "deterministic":
        check_agent(chosen.agent)
        results = score_tasks(tasks, lambda task: play_agent(game(task), chosen.agent))
        return about | summary(chosen.agent, chosen.seed, chosen.split, results)
    settings = ModelSettings.from_environment(
        model=chosen.model,
        api_key=chosen.api_key,
        decide_every=chosen.decide_every,
        max_tokens=chosen.max_tokens,
        max_seconds=chosen.max_seconds,
    )
    agent = LanguageAgent(settings)
    results = score_tasks(tasks, lambda task: play_model(game(task), agent, task))
    report = about | summary(settings.model, chosen.seed, chosen.split, results)
    return report | {"tokens": agent.tokens, "trace": agent.trace}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m server.players.baseline_inference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mode", choices=["deterministic", "openai"], default="deterministic")
    parser.add_argument("--runtime", choices=["in-process", "http"], default="in-process")
    parser.add_argument(
        "--base-url",
        default=os.environ.get(BASE_URL) or "http://localhost:7860",
        help="for --runtime http",
    )
    parser.add_argument("--agent", default="heuristic", help="for --mode deterministic")
    parser.add_argument("--model", help="for --mode openai; default is MODEL_NAME")
    parser.add_argument("--api-key", help="for --mode openai, in place of the variables")
    parser.add_argument(
        "--task", "--task-id", action="append", help="may be repeated; default is all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", choices=SPLITS, default=SPLIT)
    parser.add_argument("--decide-every", type=int, default=10, help="windows a decision holds")
    parser.add_argument("--max-tokens", type=int, default=ModelSettings.max_tokens)
    parser.add_argument("--max-seconds", type=float, default=ModelSettings.max_seconds)
    parser.add_argument("--output", type=Path, help="JSON file with scores and every exchange")
    return parser


if __name__ == "__main__":
    sys.exit(main())
