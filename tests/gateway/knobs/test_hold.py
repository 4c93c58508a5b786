"""The hold: as it was set, or an error that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.knobs.hold import ControlHold, HoldNotSaved
from jaxserve.gateway.settings import GatewaySettings


def test_it_is_kept(tmp_path: Path) -> None:
    """From one start to the next, in both positions; without a file from on."""
    path = tmp_path / "switch.json"
    assert not ControlHold(path).held and not path.exists()
    for held in (True, True, False, True):
        ControlHold(path).set(held)
        assert ControlHold(path).held is held
    hold = ControlHold()
    hold.set(True)
    assert hold.held and not ControlHold().held


def test_a_disk_that_fails(tmp_path: Path) -> None:
    """The hold takes effect, and the error says that a restart will not know of it."""
    (tmp_path / "file").write_text("")
    hold = ControlHold(tmp_path / "file" / "switch.json")
    with pytest.raises(HoldNotSaved, match="control is switched off, but a restart will not know"):
        hold.set(True)
    assert hold.held


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"held": 1}', '{"held": true, "x": 1}'])
def test_a_file_of_something_else(text: str, tmp_path: Path) -> None:
    """A malformed file is an error, not a reason to take commands."""
    path = tmp_path / "switch.json"
    path.write_text(text)
    with pytest.raises(InputError, match="--state"):
        ControlHold(path)


def test_the_usual_file(tmp_path: Path) -> None:
    """One for each control port; none for a port that is different every time."""
    variables = {"XDG_STATE_HOME": str(tmp_path)}
    usual = GatewaySettings(engine=()).with_state(variables)
    assert usual.state == tmp_path / "jaxserve" / "gateway-9001.json"
    assert GatewaySettings(engine=(), control_port=0).with_state(variables).state is None
    named = GatewaySettings(engine=(), state=tmp_path / "mine")
    assert named.with_state(variables) == named
