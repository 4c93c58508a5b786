"""The command line: what it prints, and one sentence and exit code 2 for anything wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxserve
from jaxserve import cli
from jaxserve.agents.task_setup import load_setup
from jaxserve.file_formats import described
from jaxserve.sim.machine import memory
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.step_times import step_times
from jaxserve.tasks.spec import load_task, task_names
from tests.sizes import EPISODES

DATA = Path(__file__).parent / "data"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "jaxserve.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that fails; checks the rest."""
    assert cli.main(arguments) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and output.err.startswith("jaxserve: ")
    assert "Traceback" not in output.err
    return output.err.removeprefix("jaxserve: ").strip()


@pytest.fixture
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A working directory in which the test must leave nothing behind."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not list(tmp_path.iterdir())


def test_help_lists_the_commands() -> None:
    """Help answers at once: it imports neither JAX nor plots nor agents."""
    found = run("--help")
    assert found.returncode == 0
    for command in cli.COMMANDS:
        assert command in found.stdout
    loaded = subprocess.run(
        [sys.executable, "-c", "import jaxserve.cli, sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    heavy = {"jax", "jaxserve.evaluation.held_out", "matplotlib", "scipy.stats"}
    assert not heavy & set(loaded)


def test_help_groups_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command stands under its group, with one line."""
    assert cli.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for group, commands in cli.GROUPS.items():
        start = lines.index(f"{group}:") + 1
        shown = [line.split()[0] for line in lines[start : start + len(commands)]]
        assert shown == list(commands)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """The version of the package, and nothing else."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxserve {jaxserve.__version__}\n"


@pytest.mark.parametrize("steps", ["0e6", "0.0"])
def test_steps_in_powers_of_ten(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers may be written as 1e6; their check is that of all others."""
    arguments = ("train", "--task", "1", "--out", "run", "--steps", steps)
    assert sentence(capsys, *arguments).startswith("steps is 0; it must be a whole number from 1")


def test_a_real_process_reports_bad_input() -> None:
    """Exit code, stderr and silence on stdout, as a shell sees them."""
    found = run("evaluate", "--task", "nonsense")
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("jaxserve: task is 'nonsense'; it must be one of static_")
    assert found.stderr.count("\n") == 1


def test_variables_of_earlier_projects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server reads is said to have no effect, and what nothing reads is refused."""
    monkeypatch.setenv("LLMSERVE_MODE", "sim")
    assert cli.main(["tasks"]) == 0
    said = "jaxserve: LLMSERVE_MODE is set and has no effect on jaxserve's commands\n"
    assert capsys.readouterr().err == said
    monkeypatch.setenv("LLMSERVE_SEED", "7")
    assert cli.main(["tasks"]) == 2
    assert "LLMSERVE_SEED is set, which has no effect here" in capsys.readouterr().err


def test_a_reader_who_leaves_is_no_error() -> None:
    """Output into ``head`` ends as a shell expects it, without a traceback."""
    command = [sys.executable, "-m", "jaxserve.cli", "tasks", "bursty_workload"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(300)) == (b"", 141)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("evaluate", "--nonsense", "3"),
        ("evaluate", "--episodes", "many"),
        ("train", "--task", "1", "--out", "run", "--steps", "1.5"),
        ("evaluate", "--seed-split", "holdout"),
        ("table",),
        ("table", "show"),
        ("table", "fit", "rows.csv"),
    ],
)
def test_argument_errors(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """What the parser refuses ends with exit code 2 and no traceback."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "nope"), "task is 'nope'; it must be one of"),
        (("--task", "7"), "task is 7; it must be 1, 2 or 3"),
        (("--agent", "nope"), "agent is 'nope'; it must be one of all, random"),
        (("--hardware", "tpu"), "gpu is 'tpu'; it must be one of a100-sxm-40gb"),
        (("--table", "none.parquet"), "table file none.parquet does not exist"),
        (("--trace", "none.csv"), "none.csv cannot be read"),
        (("--episodes", "0"), "episodes is 0; it must be a whole number from 1 to 100000"),
        (("--episodes", "-5"), "episodes is -5; it must be a whole number from 1 to 100000"),
        (("--task", "2", "--plot", "missing/x.png"), "the folder missing does not exist"),
        (("--task", "2", "--plot", "x.bmp"), "picture 'x.bmp' must end in .pdf, .png, .svg"),
        (("--plot", "x.png"), "--plot draws one task; name it with --task"),
        (("--json", "missing/x.json"), "the folder missing does not exist"),
        (("--json", "."), "a folder; it must name a file"),
        (
            ("--markdown", "x.md", "--json", "./x.md"),
            "--json is x.md, which --markdown names already; name another file",
        ),
        (
            ("--task", "3", "--trace", str(DATA / "azure_small.csv")),
            "only a task with one stream can replay a trace",
        ),
        (("--trace", str(DATA / "azure_small.csv")), "the trace lasts"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_bad_evaluations(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence that says what is wrong, before anything runs and with nothing written."""
    assert message in sentence(capsys, "evaluate", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "nope"), "task is 'nope'; it must be one of"),
        (("--steps", "0"), "steps is 0; it must be a whole number from 1 to 1000000000000"),
        (
            ("--seeds", "2", "--seed", "2147483647"),
            "it must be a whole number from 0 to 2147483646",
        ),
        (("--learning-rate", "nan"), "learning_rate is nan; it must be a number from 1e-08 to 1"),
        (("--discount", "1"), "discount is 1.0; it must be a number from 0.5 to 0.9999"),
        (("--resume",), "has no run.json: there is no run to resume"),
        (("--process", "0"), "--coordinator, --processes and --process go together"),
        (("--out", "/proc/run"), "--out /proc/run cannot be used: No such file or directory"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_bad_trainings(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence before anything is compiled, and no directory begun."""
    assert message in sentence(capsys, "train", "--task", "1", "--out", "run", *arguments)


def test_malformed_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line and the column of a trace are named."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,many,3\n"
    )
    message = sentence(capsys, "evaluate", "--trace", str(trace))
    assert "line 2, column ContextTokens is 'many'; it must be a whole number" in message


def test_json_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A file system that refuses at the end is one sentence as well; the table was printed."""
    arguments = ("--task", "2", "--agent", "default", "--episodes", str(EPISODES))
    assert cli.main(["evaluate", *arguments, "--json", "/proc/x.json"]) == 2
    output = capsys.readouterr()
    assert "default" in output.out
    stage, said = output.err.splitlines()
    assert stage == "bursty_workload, default"
    assert said.startswith("jaxserve: --json is /proc/x.json, but writing it failed")


def test_plot_without_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra that is missing is named."""
    monkeypatch.delitem(sys.modules, "jaxserve.show.plots", raising=False)
    monkeypatch.delattr("jaxserve.show.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plot = str(tmp_path / "x.png")
    message = sentence(capsys, "evaluate", "--task", "2", "--plot", plot)
    assert message.endswith("pip install 'jaxserve[plot]'")


def test_interrupt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ctrl-C ends a run with one line after those that said how far it was, exit code 130 and no
    half-written file."""

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxserve.evaluation.held_out.rollout", interrupted)
    arguments = ["--task", "2", "--agent", "default", "--json", str(tmp_path / "x.json")]
    assert cli.main(["evaluate", *arguments]) == 130
    assert capsys.readouterr().err == "bursty_workload, default\njaxserve: interrupted\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_evaluate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Table, JSON and picture of one run."""
    data, plot = tmp_path / "x.json", tmp_path / "x.png"
    arguments = ["--task", "2", "--agent", "default,heuristic", "--episodes", str(EPISODES)]
    assert cli.main(["evaluate", *arguments, "--json", str(data), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    for text in (
        f"bursty_workload, {EPISODES} test episodes",
        "default",
        "heuristic",
        "TTFT",
        "goodput",
        "bursty_workload, tail and cost",
        "undecided",
    ):
        assert text in printed
    (evaluated,) = json.loads(data.read_text())["evaluations"]
    assert set(evaluated["agents"]) == {"default", "heuristic"}
    assert len(evaluated["agents"]["default"]["objective"]["episodes"]) == EPISODES
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_evaluate_trace(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A trace of one's own replaces the traffic; there are no scores for it."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 14_000 * i,
            "input_length": 100 + i,
            "output_length": 50,
            "hash_ids": [i // 2],
        }
        for i in range(600)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--trace", str(trace), "--agent", "default", "--episodes", str(EPISODES)]
    part = ["--from", "84s", "--for", "7000s", "--json", str(tmp_path / "results.json")]
    assert cli.main(["evaluate", *arguments, *part]) == 0
    printed = capsys.readouterr()
    assert "500 requests in 116 min" in printed.err and "of 600 requests in" in printed.err
    (evaluated,) = json.loads((tmp_path / "results.json").read_text())["evaluations"]
    assert evaluated["trace"]["left_out"] == {"failed": 0, "outside": 100, "not_sampled": 0}
    assert f"trace_replay, {EPISODES} test episodes" in printed.out
    assert "no scores, because the anchors are for the task's own trace" in printed.out
    said = "jaxserve: 49% of the trace's prompt tokens are in blocks (hash_ids) that it had before"
    assert printed.err.count("in blocks (hash_ids)") == printed.err.count(said) == 1
    assert "jaxserve: a prefix cache of" in printed.err


def test_a_short_trace_has_a_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Who does what the refusal says can replay it."""
    trace, own = DATA / "azure_small.csv", tmp_path / "my_task.json"
    message = sentence(capsys, "evaluate", "--trace", str(trace))
    assert "`jaxserve tasks trace_replay > my_task.json`" in message
    assert cli.main(["tasks", "trace_replay"]) == 0
    own.write_text(json.dumps(json.loads(capsys.readouterr().out) | {"horizon": 5}))
    setup = load_setup(str(own), trace=str(trace))
    assert int(setup.env.horizon) == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("search", "nope"), "task is 'nope'"),
        (("headroom", "nope"), "task is 'nope'"),
        (("fidelity", "--measurements", "missing"), "--measurements missing is not a directory"),
        (("fidelity", "--plot", "missing/x.png"), "the folder missing does not exist"),
        (("fidelity", "--markdown", "missing/x.md"), "the folder missing does not exist"),
        (("fidelity", "--plot", "x.gif"), "--plot is 'x.gif'; it must be a path that ends in .png"),
    ],
)
@pytest.mark.usefixtures("empty_folder")
def test_bad_studies(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The long-running commands check their arguments before they start."""
    assert message in sentence(capsys, *arguments)


def test_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    """Every task is listed."""
    assert cli.main(["tasks"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in task_names())


def test_the_file_of_a_task(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What is printed is a task again; an unknown one is refused."""
    assert cli.main(["tasks", "2"]) == 0
    mine = tmp_path / "mine.json"
    mine.write_text(capsys.readouterr().out)
    again = load_task(str(mine))
    assert again.digest == load_task("bursty_workload").digest
    assert again.file == mine and again.name == "mine"
    assert "task is 'nope'" in sentence(capsys, "tasks", "nope")


def test_a_gpu_without_a_packaged_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The command that makes one is named."""
    gpu = tmp_path / "mine.json"
    gpu.write_text('{"base": "h100-sxm-80gb", "description": "like it", "source": "assumption"}')
    message = sentence(capsys, "evaluate", "--task", "1", "--hardware", str(gpu))
    assert message.startswith("there is no packaged table of llama-3.1-8b on ")
    assert "`jaxserve table build`" in message


def test_table_show(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows by the values of their axes; a value off the grid is refused."""
    name = "llama-3.1-8b__h100-sxm-80gb"
    assert cli.main(["table", "show", name, "--where", "batch_size", "32", "kv_budget", "1"]) == 0
    assert "llama-3.1-8b on 1 x h100-sxm-80gb" in capsys.readouterr().out
    message = sentence(capsys, "table", "show", name, "--where", "batch_size", "5")
    assert message.startswith("filter batch_size is 5.0; it must be one of 1, 4, 8, 16")
    assert "table is 'nope'" in sentence(capsys, "table", "show", "nope")


def test_table_build(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A table of one's own choice is built, written and shown."""
    out = tmp_path / "table.parquet"
    arguments = ["--model", "llama-3.1-8b", "--hardware", "l40s-48gb"]
    assert cli.main(["table", "build", *arguments, "--out", str(out)]) == 0
    *assumed, written = capsys.readouterr().out.splitlines()
    assert written == f"wrote {out}"
    assert [" ".join(line.split()[:3]) for line in assumed] == ["times of INT8", "times of INT4"]
    assert cli.main(["table", "show", str(out)]) == 0
    assert "go together" in sentence(capsys, "table", "build", *arguments)
    message = sentence(capsys, "table", "build", *arguments, "--out", str(tmp_path / "a" / "t"))
    assert "does not exist" in message
    message = sentence(capsys, "table", "build", *arguments, "--out", str(tmp_path / "t.csv"))
    assert message.endswith("it must be a path that ends in .parquet")
    assert not (tmp_path / "t.csv").exists()


@pytest.mark.usefixtures("empty_folder")
def test_an_option_that_would_be_ignored(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packaged tables are not built anew with an option that says nothing about them."""
    monkeypatch.setattr("jaxserve.sim.table.build.build_built_in", None)
    message = sentence(capsys, "table", "build", "--tensor-parallel", "2")
    assert message.startswith("--tensor-parallel is 2, but the packaged tables have their own")


def test_table_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A load test is fitted; a missing one is refused."""
    sweep = tmp_path / "sweep.csv"
    rows = ["max_concurrency,input_len,output_len,mean_tpot_ms"]
    tpot_ms = {512: (7.2, 7.6, 8.0, 11.5), 2048: (7.5, 7.9, 11.4, 25.0)}
    rows += [
        f"{batch},{prompt},256,{each_ms}"
        for prompt, times_ms in tpot_ms.items()
        for batch, each_ms in zip((1, 4, 16, 64), times_ms, strict=True)
    ]
    sweep.write_text("\n".join(rows) + "\n")
    out = tmp_path / "fitted.parquet"
    options = ["--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b", "--out", str(out)]
    assert cli.main(["table", "fit", str(sweep), *options]) == 0
    printed = capsys.readouterr().out
    assert "fit to 8 rows" in printed and f"wrote {out}" in printed
    assert "sweep.csv: 8 rows (columns), " in printed
    assert "all outputs have 256 tokens, beyond which" in " ".join(printed.split())
    assert out.is_file()
    assert "none.csv" in sentence(capsys, "table", "fit", "none.csv", *options)


def test_formats_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what it gives, what it cannot tell, and an example."""
    assert cli.main(["formats"]) == 0
    printed = capsys.readouterr().out
    assert printed == f"{described()}\n" and "  load test: table fit" in printed


def test_a_load_test_in_other_units(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Microseconds in a column of milliseconds are not passed over."""
    sweep, out = tmp_path / "sweep.csv", tmp_path / "t.parquet"
    rows = ["max_concurrency,input_len,output_len,mean_tpot_ms"]
    rows += [f"{n},{p},256,{7000 + 50 * n}" for n in (1, 8, 32, 128) for p in (128, 512)]
    sweep.write_text("\n".join(rows) + "\n")
    options = ["--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b", "--out", str(out)]
    assert "times must be in milliseconds" in sentence(capsys, "table", "fit", str(sweep), *options)
    assert not out.exists()


@pytest.mark.slow
def test_table_step_times(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The file holds the cost model of the GPU, and the command says how many KV blocks it has."""
    out = tmp_path / "h100.json"
    arguments = ["table", "step-times", "--out", str(out), "--model", "llama-3.1-8b"]
    assert cli.main([*arguments, "--hardware", "h100-sxm-80gb", "--tier", "1"]) == 0
    cost = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))
    assert json.loads(out.read_text()) == step_times(cost, tier=1)
    pool = memory.kv_pool_bytes(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"), 1, False)
    blocks = int(pool / load_model("llama-3.1-8b").kv_bytes_per_token / 32)
    assert f"--num-gpu-blocks-override {blocks}\n" in capsys.readouterr().out
    for odd, message in (
        (("--hardware", "abacus"), "gpu is 'abacus'; it must be one of a100"),
        (
            ("--hardware", "l40s-48gb", "--tier", "3"),
            "--tier is 3; it must be a whole number from 0 to 2",
        ),
        (
            ("--hardware", "l40s-48gb", "--time-dilation", "0"),
            "--time-dilation is 0.0; it must be a finite number above 0",
        ),
        (
            ("--hardware", "l40s-48gb", "--out", "missing/x.json"),
            "the folder missing does not exist",
        ),
    ):
        assert message in sentence(capsys, *arguments, *odd)
