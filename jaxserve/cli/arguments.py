"""Types of arguments, and checks that several commands share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output

if TYPE_CHECKING:
    from jaxserve.agents.task_setup import TaskSetup
    from jaxserve.env import ServeEnv
    from jaxserve.sim.traffic.trace_files.part import TracePart
    from jaxserve.sim.traffic.traces import Trace


def optional(metavar: str) -> Any:
    """Help of an optional argument without a default."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="(optional)")


File = Annotated[Path | None, optional("FILE")]
Directory = Annotated[Path | None, optional("DIR")]
Name = Annotated[str | None, optional("NAME")]
Number = Annotated[int | None, optional("INT")]
Real = Annotated[float | None, optional("FLOAT")]
TimeUnit = Annotated[Literal["s", "ms", "us", "ns"] | None, optional("UNIT")]
Task = Annotated[str, tyro.conf.arg(metavar="TASK")]


def _count(text: str) -> int:
    """A whole number, also written as 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise ValueError(f"{text} is no whole number") from None
        return int(number)


Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: _count(words[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A large whole number: 5000000, 5_000_000 or 5e6."""
OptionalCount = Annotated[Count | None, optional("INT")]


@dataclass(frozen=True)
class PartOfTrace:
    """A part of the trace, in place of all of it."""

    start: Annotated[
        str | None, tyro.conf.arg(name="from", metavar="TIME", help_behavior_hint="(optional)")
    ] = None
    """Begin: a duration after the first row, such as 2h, 30min or 1d, or a time as the file writes
    it."""
    length: Annotated[
        str | None, tyro.conf.arg(name="for", metavar="DURATION", help_behavior_hint="(optional)")
    ] = None
    """Duration, such as 2h."""
    sample: Real = None
    """Share of its requests, each drawn by itself, such as 0.1; lowers the rate to this share."""

    @property
    def taken(self) -> TracePart:
        """The part that the options state."""
        from jaxserve.sim.traffic.trace_files.part import TracePart

        return TracePart(self.start, self.length, self.sample)


ALL_OF_TRACE = PartOfTrace()


@dataclass(frozen=True)
class OwnServer:
    """Your own server and traffic, in place of the task's."""

    hardware: Name = None
    """GPU instead of the task's or the table's: a name such as h100-sxm-80gb, or a file."""
    model: Name = None
    """Model instead of the task's or the table's, or path of a config.json of Hugging Face."""
    table: File = None
    """Latency table instead of the packaged one: a name, or path of a .parquet file. The table also
    names its model, GPU and tensor parallelism."""
    trace: File = None
    """Recorded traffic to replay instead of the task's: Azure, Mooncake or BurstGPT format."""
    time_unit: TimeUnit = None
    """Unit of the trace's times, if its format does not tell."""
    part: PartOfTrace = ALL_OF_TRACE
    """A part of the trace, in place of all of it."""
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
    """Objectives of one kind of request, for a trace with a column kind; once for each kind."""
    knobs: Annotated[str | None, optional("NAMES")] = None
    """Knobs to turn, separated by commas; with a table or a trace of your own, only batch_cap by
    default."""

    @property
    def given(self) -> dict[str, Any]:
        """The given fields of ``jaxserve.tasks.own_deployment.OwnDeployment``."""
        knobs = None if self.knobs is None else self.knobs.split(",")
        fields = {
            "hardware": self.hardware,
            "model": self.model,
            "table": text(self.table),
            "trace": text(self.trace),
            "time_unit": self.time_unit,
            "trace_from": self.part.start,
            "trace_for": self.part.length,
            "trace_sample": self.part.sample,
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
        """Name of the task; ``trace_replay`` if only a trace is given.

        Args:
          named: task on the command line.

        Raises:
          InputError: there is neither a task nor a trace.
        """
        if named is not None:
            return named
        if self.trace is None:
            raise InputError("name a task, or traffic with --trace")
        return "trace_replay"


OWN = OwnServer()


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Names the extra in the error of a missing package.

    Args:
      extra: extra that installs the package.
      what: command or feature that imports the package.

    Raises:
      InputError: a third-party package is not installed.
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
    """Imports a module that draws.

    Args:
      module: name of the module.
      what: option or command that draws.

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
    """Checks before the work starts that all output files can be written.

    Args:
      paths: path by option; None for options that are not given.

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


def note_trace(path: Path | None, trace: Trace | None, env: ServeEnv) -> None:
    """Prints what was understood of a recording, and the share of its prompts that a prefix cache
    saves or would save, which only files tell that name their blocks.

    Args:
      path: file of the recording.
      trace: its requests; nothing is printed where there are none.
      env: task that replays them.
    """
    from jaxserve.tasks.replay import reuse_note

    if trace is None:
        return
    print(f"jaxserve: {path}: {trace.summary}", file=sys.stderr)
    note = reuse_note(trace, env.deployment)
    if note is not None:
        print(f"jaxserve: {note}", file=sys.stderr)


def own_setup(task: str, own: OwnServer, weights: Path | None = None) -> TaskSetup:
    """``load_setup`` of the user's own server and traffic, with a progress bar of the reading."""
    from jaxserve.agents.task_setup import load_setup
    from jaxserve.show.terminal import progress_bars

    with progress_bars() as progress:
        return load_setup(task, weights, progress, **own.given)


def text(path: Path | None) -> str | None:
    """A path as text, for functions that take names and paths."""
    return None if path is None else str(path)
