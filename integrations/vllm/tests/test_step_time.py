"""Step times of an emulated device."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve_vllm.engine_control.step_log import StepLoad
from jaxserve_vllm.step_time import Device, StepTime, read_step_time, step_load


def output(
    scheduled: dict[str, int],
    new: dict[str, int],
    cached: dict[str, int],
    drafts: dict[str, int] | None = None,
    depth: int = 0,
) -> Any:
    """The scheduler output of a step; tokens computed before by request in new and cached."""
    return SimpleNamespace(
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, num_computed_tokens=before) for name, before in new.items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached), num_computed_tokens=list(cached.values())
        ),
        scheduled_spec_decode_tokens={name: [-1] * count for name, count in (drafts or {}).items()},
        num_spec_tokens_to_schedule=depth,
    )


def test_the_load_of_a_step() -> None:
    """Decoding with and without drafts, a first and a later piece of a prompt."""
    load = step_load(
        output(
            scheduled={"decodes": 1, "verifies": 4, "begins": 100, "goes_on": 50},
            new={"begins": 0},
            cached={"decodes": 30, "verifies": 40, "goes_on": 200},
            drafts={"verifies": 3},
            depth=3,
        )
    )
    assert load == StepLoad(
        decode_seqs=2,
        decode_tokens=5,
        kv_tokens=31 + 41,
        chunks=2,
        prompt_tokens=150,
        pairs=100 * 50 + 50 * (200 + 25),
        depth=3,
    )


def test_a_prompt_of_one_token_is_a_prompt() -> None:
    """Its request was not running before."""
    load = step_load(output({"a": 1}, new={"a": 0}, cached={}))
    assert (load.decode_seqs, load.chunks, load.prompt_tokens) == (0, 1, 1)


def read(tmp_path: Path, data: Any) -> StepTime:
    path = tmp_path / "times.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return read_step_time(path)


def test_coefficients(tmp_path: Path) -> None:
    """Seconds of step, token, context token and pair, times the dilation."""
    seconds = {"step": 0.02, "token": 2e-4, "context_token": 1e-6, "pair": 1e-9}
    times = read(tmp_path, {"seconds": seconds, "time_dilation": 3})
    load = StepLoad(2, 2, 500, 1, 100, 5000.0, 0)
    expected = 3 * (0.02 + 102 * 2e-4 + 500e-6 + 5000e-9)
    assert times.seconds(load) == pytest.approx(expected)


def test_rooflines(tmp_path: Path) -> None:
    """The greater sum counts alone or, with an exponent, most; none where there is no load."""
    sides = [{"sequence": 0.003}, {"context_token": 0.001}]
    load = StepLoad(1, 1, 4, 0, 0, 0.0, 0)
    assert read(tmp_path, {"rooflines": [{"sides": sides}]}).seconds(load) == 0.004
    smooth = read(tmp_path, {"rooflines": [{"p": 2, "sides": sides}]})
    assert smooth.seconds(load) == pytest.approx(0.005)
    assert smooth.seconds(StepLoad(0, 0, 0, 1, 8, 32.0, 0)) == 0


def test_ranges_of_tokens(tmp_path: Path) -> None:
    """The first range that has room for the step's tokens counts."""
    ranges = [{"up_to": 8, "seconds": {"step": 1}}, {"seconds": {"step": 2, "token": 0.5}}]
    times = read(tmp_path, {"by_tokens": ranges})
    assert times.seconds(StepLoad(8, 8, 8, 0, 0, 0.0, 0)) == 1
    assert times.seconds(StepLoad(8, 8, 8, 1, 2, 3.0, 0)) == 7


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "cannot be read"),
        ([], "must be an object"),
        ({}, "neither seconds nor rooflines"),
        ({"base": 0.02}, "field 'base'"),
        ({"seconds": {"tokens": 1}}, "field 'tokens' of seconds is unknown"),
        ({"seconds": {"token": -1}}, "token of seconds is -1"),
        ('{"seconds": {"token": NaN}}', "token of seconds is nan"),
        ({"seconds": {"token": True}}, "token of seconds is True"),
        ({"seconds": {"token": 1}, "time_dilation": 0}, "must be above 0"),
        ({"seconds": {"token": 1}, "hidden_s": -1}, "hidden_s is -1"),
        ({"rooflines": {}}, "must be a list"),
        ({"by_tokens": {}}, "must be a list"),
        ({"by_tokens": [{"seconds": {}}, {"up_to": 8}]}, "the last range must have none"),
        ({"rooflines": [{"p": 0.5, "sides": [{}]}]}, "must be 1 or more"),
        ({"rooflines": [{"sides": []}]}, "must be a list of sums"),
        ({"rooflines": [{"sides": [{"tokens": 1}]}]}, "field 'tokens'"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    """In one sentence."""
    with pytest.raises(ValueError, match=message):
        read(tmp_path, data)
    with pytest.raises(ValueError, match="cannot be read"):
        read_step_time(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("hidden_s", "submitted", "ends"),
    [
        (0.0, (50.0, 51.0, 60.0), [52.0, 54.0, 62.0]),
        (0.25, (50.0, 52.25, 54.5), [52.0, 54.0, 56.5]),
    ],
)
def test_a_device_computes_one_step_after_the_other(
    hidden_s: float, submitted: tuple[float, ...], ends: list[float]
) -> None:
    """A step that is submitted early, or so little late that a GPU would hide it, starts when the
    one before it is done; another at once."""
    times = iter(submitted)
    device = Device(StepTime({"step": 2.0}, (), 1.0, hidden_s), lambda: next(times))
    load = StepLoad(1, 1, 1, 0, 0, 0.0, 0)
    assert [device.submit(load) for _ in submitted] == ends
