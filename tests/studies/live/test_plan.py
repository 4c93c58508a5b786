"""The study file: the packaged one is right, and a wrong one is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.studies.live.plan import AGENTS, load_study, setting_name, study_path
from jaxserve.studies.live.run import order


def test_the_packaged_study() -> None:
    """It has the GPUs, repeats and settings that its page promises."""
    study = load_study(study_path())
    assert study.repeats >= 5
    for server in study.servers:
        assert server.computes or server.spec.hardware.startswith(server.name)
        assert len(server.spec.regimes) > 1  # phases
        assert server.settings
        assert server.agents[: len(AGENTS)] == AGENTS
        caps = set(server.calibration.concurrency)
        assert not caps & {setting["batch_cap"] for setting in server.settings}
        longest = server.spec.streams[0].prompt.quantiles[-1]
        # Attention of long prompts is not found from short ones.
        assert 1.1 * max(server.calibration.prompt_tokens) >= longest
        assert server.longest >= longest


def test_every_agent_begins_as_often() -> None:
    """And each repeat has all of them."""
    agents = ("a", "b", "c")
    orders = [order(agents, repeat) for repeat in range(6)]
    assert all(sorted(each) == list(agents) for each in orders)
    assert sorted(each[0] for each in orders) == sorted(agents * 2)


def test_names_of_settings() -> None:
    """They say what is set."""
    assert setting_name({"batch_cap": 24, "kv_budget_fraction": 0.5}) == (
        "batch_cap=24,kv_budget_fraction=0.5"
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"time_dilation": 0}, "time_dilation is 0; it must be"),
        ({"task": "none.json"}, "none.json does not exist"),
        ({"settings": [{"speculation_depth": 2}]}, "a knob is 'speculation_depth'; it must be one"),
        ({"settings": [{"batch_cap": 0}]}, "batch_cap is 0; it must be"),
        ({"batch_cap": 1.5}, "batch_cap is 1.5; it must be"),
        ({"computes": 1}, "computes is 1; it must be true or false"),
        (
            {"calibration": {"concurrency": []}},
            "concurrency is []; it must be a list with at least one entry",
        ),
        ({"speed": 1}, "field 'speed' is unknown"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    """A field that is not as it must be is named."""
    study = json.loads(study_path().read_text())
    study["servers"] = {"h100": study["servers"]["h100"] | change}
    task = study_path().with_name("live_h100.json")
    (tmp_path / "live_h100.json").write_bytes(task.read_bytes())
    (tmp_path / "study.json").write_text(json.dumps(study))
    with pytest.raises(InputError) as refused:
        load_study(tmp_path / "study.json")
    assert sentence in str(refused.value)
