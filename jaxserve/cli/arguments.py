"""Kinds of arguments, and what several commands do with them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output

if TYPE_CHECKING:
    from jaxserve.env import ServeEnv


def optional(metavar: str) -> Any:
    """Describes an argument that nothing is assumed for where it is not given."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(optional)")


File = Annotated[Path | None, optional("FILE")]
Directory = Annotated[Path | None, optional("DIR")]
Name = Annotated[str | None, optional("NAME")]
Number = Annotated[int | None, optional("INT")]
Real = Annotated[float | None, optional("FLOAT")]
Task = Annotated[str, tyro.conf.arg(metavar="TASK")]


@dataclass(frozen=True)
class OwnServer:
    """Your own server and traffic, in place of the task's."""

    hardware: Name = None
    """GPU instead of the task's or the table's: a name such as h100-sxm-80gb, or path of a file."""
    model: Name = None
    """Model instead of the task's or the table's, or path of a config.json of Hugging Face."""
    table: File = None
    """Latency table instead of the packaged one: a name, or path of a .parquet file. It also says
    which model, GPU and tensor parallelism it was measured on."""
    trace: File = None
    """Recorded traffic to replay instead of the task's: Azure, Mooncake or BurstGPT format."""
    ttft: Real = None
    """Objective on the time to first token, in seconds."""
    tpot: Real = None
    """Objective on the mean time per output token after the first, in seconds."""
    gpus: Number = None
    """Replicas of the model, each on --tensor-parallel GPUs."""
    tensor_parallel: Number = None
    """GPUs that share every layer."""
    token_budget: Number = None
    """Tokens that an iteration may process (max_num_batched_tokens of vLLM)."""
    slo: Annotated[tyro.conf.UseAppendAction[tuple[str, ...]], optional("KIND:ttft=S,tpot=S")] = ()
    """Objectives of one kind of request, where the trace has a column kind; once for each kind."""
    knobs: Annotated[str | None, optional("NAMES")] = None
    """Knobs to turn, separated by commas. A table or a trace of your own leaves batch_cap alone
    open."""

    @property
    def given(self) -> dict[str, Any]:
        """The fields of ``jaxserve.tasks.own_deployment.OwnDeployment`` that are given."""
        knobs = None if self.knobs is None else self.knobs.split(",")
        fields = {
            "hardware": self.hardware,
            "model": self.model,
            "table": text(self.table),
            "trace": text(self.trace),
            "ttft_s": self.ttft,
            "tpot_s": self.tpot,
            "gpus": self.gpus,
            "tensor_parallel": self.tensor_parallel,
            "token_budget": self.token_budget,
            "slos": self.slo or None,
            "knobs": None if knobs is None else tuple(name.strip() for name in knobs),
        }
        return {name: value for name, value in fields.items() if value is not None}

    def task(self, named: str | None) -> str:
        """The task that is meant: ``trace_replay`` where only a trace is named.

        Raises:
          InputError: neither a task nor a trace is named.
        """
        if named is not None:
            return named
        if self.trace is None:
            raise InputError("name a task, or traffic with --trace")
        return "trace_replay"


OWN = OwnServer()


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """For imports of what an extra installs.

    Args:
      extra: installs it.
      what: needs it.

    Raises:
      InputError: a package of others is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "jaxserve":
            raise
        raise InputError(
            f"{what} needs {error.name}, which an extra installs: pip install 'jaxserve[{extra}]'"
        ) from None


def import_plots(module: str = "jaxserve.show.plots", what: str = "--plot") -> ModuleType:
    """A module that draws.

    Args:
      what: asks for it.

    Raises:
      InputError: matplotlib is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise InputError(
            f"{what} needs matplotlib, which the plot extra installs: pip install 'jaxserve[plot]'"
        ) from None


def check_outputs(paths: Mapping[str, Path | None]) -> None:
    """Makes sure that all files of a command can be written, before its work starts.

    Args:
      paths: by option; None where it was not given.

    Raises:
      InputError: a file cannot be written, or two options name the same one.
    """
    taken: dict[Path, str] = {}
    for option, path in paths.items():
        check_output(path, option)
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise InputError(f"{option} is {path}, which {other} names already; name another file")


def note_trace(path: Path | None, env: ServeEnv) -> None:
    """Says how much of a recording's prompts a prefix cache spares or would spare, where the file
    tells."""
    from jaxserve.sim.traffic.traces import load_trace
    from jaxserve.tasks.replay import reuse_note, trace_path

    if path is None:
        return
    trace = load_trace(trace_path(path))
    note = reuse_note(trace, env.deployment)
    if note is not None:
        print(f"jaxserve: {note}", file=sys.stderr)


def text(path: Path | None) -> str | None:
    """A path for functions that take names and paths."""
    return None if path is None else str(path)
