"""The command: what it writes and prints, and one sentence for anything wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from jaxserve import cli
from jaxserve.learning.training import Interrupted


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a comparison that fails."""
    assert cli.main(["compare", *arguments]) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1 and output.err.startswith("jaxserve: ")
    return output.err.removeprefix("jaxserve: ").strip()


def test_interrupted_training_says_how_to_go_on(
    tiny: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, exit code 130, and no results."""

    def stop(*arguments: object, **options: object) -> None:
        raise Interrupted("stopped after update 1 of 2; continue with --resume")

    monkeypatch.setattr("jaxserve.studies.compare.trained.train", stop)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["compare", "static_workload", "--out", str(tmp_path / "out"), "--seeds", "2"])
    assert stopped.value.code == 130
    expected = "static_workload, training 2 policies\n"
    expected += "jaxserve: stopped while training; the same command goes on\n"
    assert capsys.readouterr().err == expected
    assert not list((tmp_path / "out").rglob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "task is 'nope'; it must be one of"),
        (("2", "--seeds", "0"), "seeds is 0; it must be a whole number from 1 to 1024"),
        (("2", "--steps", "0"), "steps is 0; it must be a whole number from 1"),
        (("2", "--episodes", "0"), "episodes is 0; it must be a whole number from 1 to 100000"),
        (("2", "--hardware", "tpu"), "gpu is 'tpu'; it must be one of a100-sxm-40gb"),
        (("4",), "task is 4; it must be 1, 2 or 3"),
        (("1", "--trace", "none.csv"), "none.csv cannot be read"),
        (("2", "--trace", "none.csv"), "none.csv cannot be read"),
        (("2", "--markdown", "missing/x.md"), "the folder missing does not exist"),
        (("2", "--json", "."), "a folder; it must name a file"),
        (("2", "--out", "file"), "--out file cannot be used: File exists"),
    ],
)
def test_bad_arguments(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Named before anything runs, and with nothing written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    out = () if "--out" in arguments else ("--out", "out")
    assert message in sentence(capsys, *arguments, *out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_without_matplotlib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The extra that is missing is named before the training, not after it."""
    for module in ("jaxserve.studies.compare.pictures", "jaxserve.show.plots"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = sentence(capsys, "1", "--out", str(tmp_path / "out"))
    assert message.startswith("jaxserve compare needs matplotlib")
    assert message.endswith("pip install 'jaxserve[plot]'")
    assert not list(tmp_path.iterdir())
