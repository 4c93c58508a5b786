"""The command line: each command parses its arguments, calls the package and prints.

Commands import their dependencies themselves, so that ``--help`` answers at once.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from jaxserve import __version__
from jaxserve.cli.agents import compare_agents, evaluate_agents, train_agent
from jaxserve.cli.autoscale import autoscale_fleet
from jaxserve.cli.engines import calibrate_engine, record_trace, run_gateway, run_mock_engine
from jaxserve.cli.live import (
    make_live_task,
    send_traffic,
    show_live_log,
    throw_switch,
    write_dashboard,
)
from jaxserve.cli.operate import operate_gateway
from jaxserve.cli.plan import plan_deployment
from jaxserve.cli.rollouts import rollout_group
from jaxserve.cli.scale import scale_replicas
from jaxserve.cli.simulate import simulate_log
from jaxserve.cli.studies import (
    check_fidelity,
    list_tasks,
    print_headroom,
    run_live_study,
    search_settings,
)
from jaxserve.cli.tables import list_formats, table_group
from jaxserve.errors import InputError, InputWarning
from jaxserve.runtime.earlier_variables import without_effect

GROUPS: dict[str, dict[str, Callable[..., Any]]] = {
    "plan and simulate": {
        "plan": plan_deployment,
        "autoscale": autoscale_fleet,
        "tasks": list_tasks,
        "search": search_settings,
        "headroom": print_headroom,
        "simulate": simulate_log,
        "table": table_group,
        "formats": list_formats,
    },
    "train and evaluate": {"train": train_agent, "evaluate": evaluate_agents},
    "operate": {
        "gateway": run_gateway,
        "mock-engine": run_mock_engine,
        "calibrate": calibrate_engine,
        "record": record_trace,
        "live-task": make_live_task,
        "operate": operate_gateway,
        "scale": scale_replicas,
        "send": send_traffic,
        "switch": throw_switch,
        "live-log": show_live_log,
        "grafana": write_dashboard,
    },
    "rollouts": {"rollout": rollout_group},
    "studies": {
        "compare": compare_agents,
        "fidelity": check_fidelity,
        "live-study": run_live_study,
    },
}
"""Commands by name, in the groups of ``jaxserve --help``."""
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}
"""Every command by its name."""
_COMPUTE_NOTHING = ("formats", "gateway", "grafana", "plan", "rollout", "switch")
"""Commands that start without JAX."""
_DESCRIPTION = "Learn to operate an LLM inference server."
_AFTER_HELP = """\
jaxserve COMMAND --help describes a command and its options.
jaxserve --version prints the version.
jaxserve --tyro-write-completion {bash,zsh,tcsh} FILE writes completion for a shell.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      arguments: words after ``jaxserve``; None for those of the process.

    Returns:
      exit code: 0, 2 after bad input, 130 after Ctrl-C, 141 if the reader closed the output.
    """
    # Silence orbax: its log lines break the progress bar.
    logging.getLogger("absl").setLevel(logging.ERROR)
    try:
        try:
            with warnings.catch_warnings():
                _print_warnings()
                return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Avoids Python's complaint at exit, when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(arguments: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given in (["--help"], ["-h"], ["--version"]):
        print(_overview() if given != ["--version"] else f"jaxserve {__version__}")
        return 0
    try:
        unused = without_effect(os.environ, (), "on jaxserve's commands")
        if unused:
            warnings.warn(unused, InputWarning, stacklevel=1)
        _set_up(given)
        _join_lines_of_help()
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="jaxserve",
            description=_DESCRIPTION,
            args=given,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
        )
    except InputError as error:
        print(f"jaxserve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxserve: interrupted", file=sys.stderr)
        return 130
    return 0


def _join_lines_of_help() -> None:
    """Makes one line of each argument's description in the docstrings of commands, because tyro
    prints their line breaks."""
    for name, module in sys.modules.items():
        if name.startswith(f"{__name__}."):
            for each in vars(module).values():
                if inspect.isfunction(each) and each.__module__ == name and each.__doc__:
                    each.__doc__ = re.sub(r"\n {12,}(?=\S)", " ", each.__doc__)


def _overview() -> str:
    """Text of ``jaxserve --help``: commands by group, each with its first sentence."""
    lines = ["usage: jaxserve COMMAND [OPTIONS]", "", _DESCRIPTION]
    width = max(map(len, COMMANDS))
    for group, commands in GROUPS.items():
        lines += ["", f"{group}:"]
        for name, command in commands.items():
            summary = (command.__doc__ or "").partition("\n")[0]
            lines.append(f"  {name:{width}}  {summary}")
    return "\n".join([*lines, "", _AFTER_HELP.rstrip()])


def _print_warnings() -> None:
    """Prints warnings about input in the form of an error, each once."""
    show, said = warnings.showwarning, set[str]()

    def print_warning(message: Warning | str, category: type[Warning], *others: Any) -> None:
        if issubclass(category, InputWarning):
            if str(message) not in said:
                print(f"jaxserve: {message}", file=sys.stderr)
            said.add(str(message))
        else:
            show(message, category, *others)

    warnings.showwarning = print_warning
    warnings.simplefilter("always", InputWarning)


def _set_up(arguments: Sequence[str]) -> None:
    """Sets up JAX for a command that computes."""
    if not arguments or arguments[0] not in COMMANDS or arguments[0] in _COMPUTE_NOTHING:
        return
    from jaxserve.runtime.jax_setup import (
        collect_garbage_rarely,
        enable_compilation_cache,
        use_all_cores,
    )

    collect_garbage_rarely()
    enable_compilation_cache()
    use_all_cores()
