"""The command line. Commands only: each takes its arguments, calls the package and prints.

Commands import what they need themselves, so that ``--help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from jaxserve.cli.agents import compare_agents, evaluate_agents, train_agent
from jaxserve.cli.calibrate import calibrate_engine, record_trace
from jaxserve.cli.live import (
    make_live_task,
    operate_gateway,
    run_live_study,
    send_traffic,
    show_live_log,
    throw_switch,
)
from jaxserve.cli.rollouts import rollout_group
from jaxserve.cli.servers import run_gateway, run_mock_engine
from jaxserve.cli.simulate import simulate_log
from jaxserve.cli.studies import check_fidelity, list_tasks, print_headroom, search_settings
from jaxserve.cli.tables import table_group
from jaxserve.errors import InputError, InputWarning
from jaxserve.runtime.earlier_variables import without_effect

COMMANDS: dict[str, Callable[..., Any]] = {
    "evaluate": evaluate_agents,
    "train": train_agent,
    "compare": compare_agents,
    "tasks": list_tasks,
    "table": table_group,
    "search": search_settings,
    "headroom": print_headroom,
    "fidelity": check_fidelity,
    "gateway": run_gateway,
    "live-task": make_live_task,
    "operate": operate_gateway,
    "send": send_traffic,
    "switch": throw_switch,
    "live-log": show_live_log,
    "live-study": run_live_study,
    "mock-engine": run_mock_engine,
    "calibrate": calibrate_engine,
    "record": record_trace,
    "simulate": simulate_log,
    "rollout": rollout_group,
}
"""Every command by its name."""
_COMPUTE_NOTHING = ("gateway", "rollout", "switch")
"""Commands that start without JAX."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Returns:
      the exit code: 0, 2 after bad input, 130 when interrupted, 141 when nobody reads the output.
    """
    # orbax says there how long it waited for a disk, in the middle of a bar.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        try:
            with warnings.catch_warnings():
                _print_warnings()
                return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python would complain at exit, when it tries to print the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: Sequence[str] | None) -> int:
    try:
        unused = without_effect(os.environ, (), "on jaxserve's commands")
        if unused:
            warnings.warn(unused, InputWarning, stacklevel=1)
        _set_up(sys.argv[1:] if arguments is None else arguments)
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="jaxserve",
            description="Learn to operate an LLM inference server.",
            args=arguments,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
        )
    except InputError as error:
        print(f"jaxserve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxserve: interrupted", file=sys.stderr)
        return 130
    return 0


def _print_warnings() -> None:
    """What a user is told of his input has the form of an error; once is enough."""
    show = warnings.showwarning

    def print_warning(message: Warning | str, category: type[Warning], *others: Any) -> None:
        if issubclass(category, InputWarning):
            print(f"jaxserve: {message}", file=sys.stderr)
        else:
            show(message, category, *others)

    warnings.showwarning = print_warning
    warnings.simplefilter("once", InputWarning)


def _set_up(arguments: Sequence[str]) -> None:
    """JAX for a command that computes."""
    if not arguments or arguments[0] not in COMMANDS or arguments[0] in _COMPUTE_NOTHING:
        return
    from jaxserve.runtime.jax_setup import enable_compilation_cache, use_all_cores

    enable_compilation_cache()
    use_all_cores()
