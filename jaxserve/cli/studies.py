"""Commands about tasks and simulators: list tasks, search settings, check fidelity, live study."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import (
    OWN,
    Directory,
    File,
    Name,
    Number,
    OwnServer,
    check_outputs,
    import_plots,
    needing,
    note_trace,
    own_setup,
)
from jaxserve.errors import InputError

_LITTLE_HEADROOM = 0.05


def list_tasks(task: tyro.conf.Positional[Name] = None) -> None:
    """List the tasks: their deployment, traffic and knobs; or print the file of a task.

    Args:
        task: Name or alias of a task, to print its file as a start for your own.
    """
    from jaxserve.show.report import task_table
    from jaxserve.show.terminal import result_console
    from jaxserve.tasks.spec import load_task, task_names, task_path

    if task is None:
        result_console().print(task_table([load_task(name) for name in task_names()]))
    else:
        spec = load_task(task)
        print((spec.file or task_path(spec.name)).read_text(encoding="utf-8"), end="")


def search_settings(
    task: tyro.conf.Positional[Name] = None, own: OwnServer = OWN, markdown: File = None
) -> None:
    """Search the best constant setting of your server and traffic, or the anchors of a task.

    With a trace, a table or another option of your own the command prints the best settings and
    their difference. Otherwise it also searches the task's oracle and freezes its anchors; anchors
    of a task file are written beside the file, as NAME.anchors.json.

    Args:
        task: Name or alias of a task (see jaxserve tasks), path of a task file, or all for the
            built-in ones; trace_replay if only a trace is given.
        markdown: File to write the tables to; sections on other tasks in the file are kept.
    """
    from jaxserve.agents.panel import find_best_static
    from jaxserve.show.headroom import headroom_markdown
    from jaxserve.show.outputs import write_output
    from jaxserve.show.report import evaluation_markdown, search_table
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.tasks.anchors import write_anchors
    from jaxserve.tasks.spec import task_names

    task = own.task(task)
    check_outputs({"--markdown": markdown})
    if own.given:
        setup = own_setup(task, own)
        note_trace(own.trace, setup.trace, setup.env)
        with progress_bars() as progress:
            found = search_table(setup, find_best_static(setup, progress))
        result_console().print(found.rich())
        if markdown is not None:
            write_output(markdown, evaluation_markdown([found]).encode(), "--markdown")
        return
    for name in task_names() if task == "all" else (task,):
        result = _measured_headroom(name, own)
        path = write_anchors(result.anchors(), result.spec.file)
        result_console().print(f"wrote {path}", soft_wrap=True)
        if result.headroom < _LITTLE_HEADROOM:
            print(
                f"jaxserve: adapting gains {result.headroom:.1%} on {name}: scores above 0.5 "
                "magnify small differences; compare gains in reward as well",
                file=sys.stderr,
            )
        if markdown is not None:
            earlier = markdown.read_text(encoding="utf-8") if markdown.is_file() else ""
            write_output(markdown, headroom_markdown([result], earlier).encode(), "--markdown")


def print_headroom(task: tyro.conf.Positional[Name] = None, own: OwnServer = OWN) -> None:
    """Print how much adapting can gain: regimes against settings, policies against each other.

    Args:
        task: Name or alias of a task (see jaxserve tasks), or path of a task file; trace_replay if
            only a trace is given.
    """
    _measured_headroom(own.task(task), own)


def check_fidelity(
    measurements: Directory = None, markdown: File = None, plot: File = None
) -> None:
    """Recompute every comparison of the simulators with measurements and with each other.

    Args:
        measurements: Directory of the measured data; checks that need it are skipped without it.
        markdown: File to write the table to, unless checks were skipped.
        plot: Picture of the errors against their bars to write, ending in .png.
    """
    from jaxserve.show.outputs import write_output
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.studies.fidelity import all_checks
    from jaxserve.studies.fidelity.measurements import shared_data

    check_outputs({"--markdown": markdown, "--plot": plot})
    if measurements is not None and not measurements.is_dir():
        raise InputError(f"--measurements {measurements} is not a directory")
    if plot is not None:
        import_plots()
        checks.ending("--plot", plot, ".png")
    with progress_bars() as progress:
        rows, skipped = all_checks.run_checks(
            measurements or shared_data(), lambda name: progress(name, 0, 1)
        )
    console = result_console()
    console.print(all_checks.fidelity_table(rows))
    for name in skipped:
        console.print(f"skipped {name}: the measured data is not there")
    if skipped and markdown is not None:
        print(
            f"jaxserve: {markdown} is not written, because checks were skipped; --measurements "
            "names the directory of their data",
            file=sys.stderr,
        )
    elif markdown is not None:
        write_output(markdown, all_checks.fidelity_markdown(rows).encode(), "--markdown")
    if plot is not None:
        write_output(plot, all_checks.fidelity_picture(rows), "--plot")


def _measured_headroom(task: str, own: OwnServer) -> Any:
    """Measures and prints the headroom of a task."""
    from jaxserve.evaluation.headroom import measure_headroom
    from jaxserve.show.headroom import headroom_tables
    from jaxserve.show.terminal import progress_bars, result_console

    setup = own_setup(task, own)
    note_trace(own.trace, setup.trace, setup.env)
    with progress_bars() as progress:
        result = measure_headroom(setup, progress=progress)
    for table in headroom_tables(result):
        result_console().print(table.rich())
    return result


def run_live_study(
    directory: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    study: File = None,
    server: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "all",
    vllm: Directory = None,
    repeats: Number = None,
    markdown: File = None,
    json: File = None,
) -> None:
    """Compare agents on a real engine with the simulators' predictions.

    For every server of the study the command starts the engine with a gateway in front, calibrates
    it, searches its best static setting and trains PPO in the simulator. Then every agent operates
    it under the same requests. Results in --directory are reused.

    Args:
        directory: Directory of tables, weights and all outcomes.
        study: Study file instead of the packaged one.
        server: Servers of the study, separated by commas, or all.
        vllm: Environment of vLLM with the plug-in jaxserve-vllm; without it the mock engine stands
            in for vLLM, and no --markdown is written.
        repeats: Test episodes of every agent, instead of the study's number.
        markdown: Page to write the findings to; sections of other servers stay.
        json: File to write the figures of every episode to.
    """
    import dataclasses
    from json import dumps

    from jaxserve.show.outputs import write_output
    from jaxserve.show.terminal import progress_bars, result_console

    with needing("gateway", "live-study"):
        from jaxserve.studies.live import pages, results
        from jaxserve.studies.live.plan import load_study, study_path
        from jaxserve.studies.live.run import run_server

    check_outputs({"--markdown": markdown, "--json": json})
    if vllm is None and markdown is not None:
        raise InputError("--markdown is for results of a real engine; name its --vllm environment")
    earlier = "" if markdown is None else _earlier(markdown)
    if vllm is not None and not (vllm / "bin" / "vllm").is_file():
        raise InputError(f"--vllm is {vllm}, where there is no bin/vllm")
    planned = load_study(study or study_path())
    if repeats is not None:
        planned = dataclasses.replace(planned, repeats=checks.whole("--repeats", repeats, 1, 1000))
    known = {each.name: each for each in planned.servers}
    names = list(known) if server == "all" else server.split(",")
    for name in names:
        checks.one_of("--server", name, known)
    found = []
    for name in names:
        folder = directory / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--directory is {directory}: {error.strerror}") from None
        with progress_bars() as progress:
            found.append(run_server(planned, known[name], folder, vllm, progress))
        result_console().print(pages.server_table(found[-1]).rich())
        for sentence in pages.sentences(found[-1]):
            result_console().print(sentence, soft_wrap=True)
    if markdown is not None:
        command = pages.command_text(study, server, repeats)
        write_output(markdown, pages.markdown(found, command, earlier).encode(), "--markdown")
    if json is not None:
        text = dumps(results.to_json(found), indent=1)
        write_output(json, f"{text}\n".encode(), "--json")


def _earlier(page: Path) -> str:
    """The present text of a page; empty if there is no page."""
    try:
        return page.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--markdown is {page}, which cannot be read: {error}") from None
