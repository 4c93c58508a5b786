"""Commands as they come from outside."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.engine_control.command import (
    ENGINE_KNOBS,
    MAX_LEASE_S,
    Command,
    CommandError,
    parse_command,
    parse_knobs,
)

NUMBERS = st.one_of(
    st.integers(-5, 5000), st.floats(), st.booleans(), st.none(), st.text(max_size=3)
)
COMMANDS = st.one_of(
    st.binary(max_size=20),
    st.fixed_dictionaries(
        {},
        optional={
            "lease_s": NUMBERS,
            "knobs": st.one_of(
                NUMBERS,
                st.dictionaries(st.sampled_from([*ENGINE_KNOBS, "cap"]), NUMBERS, max_size=3),
            ),
            "lease": NUMBERS,
        },
    ).map(lambda body: json.dumps(body).encode()),
    st.sampled_from([b'{"lease_s": 1, "lease_s": 2}', b"[1]", b"1e999", b"[" * 100_000]),
)


def test_a_command_is_read() -> None:
    """Whole knobs are integers, a switch may be true or false, and no knob at all is allowed."""
    body = b'{"lease_s": 2, "knobs": {"batch_cap": 8.0, "kv_budget_fraction": 1}}'
    assert parse_command(body) == Command(2.0, {"batch_cap": 8, "kv_budget_fraction": 1.0})
    assert parse_knobs(b'{"priority_routing": true}') == {"priority_routing": 1}
    assert parse_command(b'{"lease_s": 0.5}') == Command(0.5, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "lease_s is missing"),
        (b'{"lease_s": 1, "batch_cap": 4}', "field 'batch_cap' is unknown"),
        (b'{"lease_s": 1, "lease_s": 2}', "given twice"),
        (b'{"lease_s": 1, "knobs": {"batch_cap": 4, "batch_cap": 8}}', "given twice"),
        (b'{"lease_s": NaN}', "must be finite"),
        (b'{"lease_s": 1e999}', "lease_s is inf"),
        (b'{"lease_s": 0}', "above 0"),
        (b'{"lease_s": -1}', "above 0"),
        (b'{"lease_s": 3601}', "3600 at most"),
        (b'{"lease_s": true}', "lease_s is True"),
        (b'{"lease_s": "10"}', "lease_s is '10'"),
        (b'{"lease_s": 1, "knobs": [4]}', "must be an object of values by knob"),
        (b'{"lease_s": 1, "knobs": {"cap": 4}}', "knob 'cap' is unknown"),
        (b'{"lease_s": 1, "knobs": {"batch_cap": 4.5}}', "must be a whole number"),
        (b'{"lease_s": 1, "knobs": {"batch_cap": true}}', "must be a number"),
        (b'{"lease_s": 1, "knobs": {"batch_cap": null}}', "must be a number"),
        (b'{"lease_s": 1, "knobs": {"batch_cap": 1e999}}', "must be a number"),
        (b'{"lease_s": 1, "knobs": {"kv_budget_fraction": "0.5"}}', "must be a number"),
    ],
)
def test_a_bad_command_is_refused(body: bytes, message: str) -> None:
    """In one sentence that says what is wrong."""
    with pytest.raises(CommandError, match=message) as refused:
        parse_command(body)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 200


@given(COMMANDS)
def test_whatever_comes_is_a_command_or_refused(text: bytes) -> None:
    """A command that is read has a lease in its range, and finite numbers of known knobs."""
    try:
        command = parse_command(text)
    except CommandError:
        return
    assert 0 < command.lease_s <= MAX_LEASE_S and command.knobs.keys() <= set(ENGINE_KNOBS)
    assert all(math.isfinite(value) for value in command.knobs.values())
